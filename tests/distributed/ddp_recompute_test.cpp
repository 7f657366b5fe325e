// A part of the model that apex::checkpoint computes again, under DistributedDataParallel and with SyncBatchNorm.
#include <apex_cpp/activation_checkpoint.h>
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/amp/support.h"
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

using torch::Tensor;

/// At O6 the product of `middle` runs in FP8.
struct SyncedNetImpl : torch::nn::Module {
  SyncedNetImpl() {
    first = register_module("first", torch::nn::Linear(6, 16));
    norm = register_module("norm", SyncBatchNorm(16));
    middle = register_module("middle", torch::nn::Linear(16, 16));
    last = register_module("last", torch::nn::Linear(16, 3));
    block->push_back(first);
    block->push_back(norm);
    block->push_back(torch::nn::ReLU());
    block->push_back(middle);
  }
  Tensor forward(const Tensor& x) { return last(torch::relu(checkpoints ? checkpoint(block, x) : block->forward(x))); }
  torch::nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
  SyncBatchNorm norm{nullptr};
  torch::nn::Sequential block;  // of the modules above
  bool checkpoints = false;
};
TORCH_MODULE(SyncedNet);

std::string trained(const std::string& level, bool checkpoints) {
  amp::reset();
  torch::manual_seed(5);
  SyncedNet model;
  model->checkpoints = checkpoints;
  optimizers::FusedAdam adam(model->parameters(), optimizers::FusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(model, adam, level, test::quiet().loss_scale(8.0));
  auto ddp = DistributedDataParallel(net, DistributedDataParallelOptions().message_size(8));
  torch::manual_seed(20 + testing::rank());
  for (int step = 0; step < 3; ++step) {
    opt.zero_grad();
    { amp::scale_loss(ddp(torch::randn({4, 6})).to(torch::kFloat).square().mean(), opt).backward(); }
    opt.step();
  }
  return test::bytes_of(*net) + test::bytes_of(opt);
}

class Recompute : public test::AmpTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Levels, Recompute, ::testing::Values("O0", "O1", "O2", "O4", "O5", "O6"));

TEST_P(Recompute, TrainsToTheBitsOfPlainCalls) { EXPECT_EQ(trained(GetParam(), true), trained(GetParam(), false)); }

}  // namespace
}  // namespace apex::parallel
