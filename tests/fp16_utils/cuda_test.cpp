// FP16_Optimizer on CUDA tensors: the same bits as on the CPU for the same gradients. Needs a GPU.
#include <apex_cpp/optimizers.h>

#include <cmath>

#include "tests/fp16_utils/half_network.h"
#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

struct Outcome {
  std::vector<torch::Tensor> params;
  double loss_scale;
};

Outcome run(torch::Device device) {
  torch::manual_seed(7);
  std::vector<torch::Tensor> params;
  for (const int64_t size : {5, 70000}) params.push_back(torch::randn({size}).to(device, torch::kHalf).requires_grad_());
  params.push_back(torch::randn({9}).to(device).requires_grad_());
  optimizers::FusedSGD sgd(params, optimizers::FusedSGDOptions(0.125).momentum(0.5));
  FP16_Optimizer optimizer(sgd, dynamic(64, 2));
  for (int step = 0; step < 5; ++step) {
    for (auto& param : params) {
      param.mutable_grad() = torch::randn(param.sizes()).to(device, param.scalar_type());
      if (step == 2) param.mutable_grad().view(-1)[1] = INFINITY;
    }
    optimizer.update_master_grads();
    optimizer.step();
  }
  Outcome outcome{{}, optimizer.loss_scale()};
  for (const auto& param : params) outcome.params.push_back(param.detach().cpu());
  return outcome;
}

TEST(Fp16OptimizerOnCuda, GivesTheBitsOfTheCpu) {
  APEX_CPP_NEEDS_GPUS(1);
  const Outcome on_cpu = run(torch::kCPU), on_cuda = run(torch::kCUDA);
  EXPECT_TRUE(equal(on_cpu.params, on_cuda.params));
  EXPECT_EQ(on_cpu.loss_scale, on_cuda.loss_scale);
}

}  // namespace
}  // namespace apex::test
