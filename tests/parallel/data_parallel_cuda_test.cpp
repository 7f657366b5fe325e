// torch::nn::parallel::data_parallel itself, which only LibTorch with CUDA defines. Needs two GPUs.
#include <apex_cpp/amp.h>
#include <gtest/gtest.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/torch.h>

#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

struct OnGpusImpl : torch::nn::Cloneable<OnGpusImpl> {
  OnGpusImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(8, 16));
    last = register_module("last", torch::nn::Linear(16, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last->forward(first->forward(x).relu()); }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(OnGpus);

class DataParallelOnGpus : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { APEX_CPP_NEEDS_GPUS(2); }
  void TearDown() override { amp::reset(); }
  amp::InitializeOptions quiet_ = amp::InitializeOptions().verbosity(0);
};

TEST_P(DataParallelOnGpus, RunsAHandleOnEachGpu) {
  OnGpus model;
  model->to(torch::Device(torch::kCUDA, 0));
  auto net = amp::initialize(model, GetParam(), quiet_);
  const auto input = torch::randn({8, 8}).cuda();
  const auto output = torch::nn::parallel::data_parallel(net, input), expected = net->forward(input);
  EXPECT_EQ(output.scalar_type(), expected.scalar_type());
  // Products of other shapes may be summed in another order. So 16 hidden values, below 4, may be neighbours in FP16, 2^-9
  // away; weights are below 1/4. That is 16 * 2^-9 / 4 = 8e-3; the output may be rounded to a neighbour, another 2^-10 of it.
  EXPECT_TRUE(output.allclose(expected, 1e-2, 1e-2));
  output.to(torch::kFloat).sum().backward();
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

INSTANTIATE_TEST_SUITE_P(Levels, DataParallelOnGpus, ::testing::Values("O1", "O2"));

}  // namespace
}  // namespace apex::test
