// LARC on CUDA tensors gives the bits of the CPU. Needs a GPU.
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

std::vector<torch::Tensor> run(torch::Device device, torch::Dtype dtype) {
  torch::manual_seed(7);
  std::vector<torch::Tensor> params;
  for (const int64_t size : {3, 1000, 70000}) params.push_back(torch::randn({size}).to(device, dtype).requires_grad_());
  optimizers::FusedSGD sgd(params, optimizers::FusedSGDOptions(0.25).momentum(0.9).weight_decay(0.01));
  parallel::LARC larc(sgd, 0.1);
  for (int step = 0; step < 3; ++step) {
    for (auto& param : params) param.mutable_grad() = torch::randn(param.sizes()).to(device, dtype);
    larc.step();
  }
  std::vector<torch::Tensor> values;
  for (const auto& param : params) values.push_back(param.detach().cpu());
  return values;
}

TEST(LarcOnCuda, Larc02GivesTheBitsOfTheCpu) {
  APEX_CPP_NEEDS_GPUS(1);
  for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16}) {
    const auto on_cpu = run(torch::kCPU, dtype), on_cuda = run(torch::kCUDA, dtype);
    for (size_t i = 0; i < on_cpu.size(); ++i) EXPECT_TRUE(torch::equal(on_cpu[i], on_cuda[i])) << dtype << " " << i;
  }
}

}  // namespace
}  // namespace apex::test
