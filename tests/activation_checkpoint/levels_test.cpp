// Checkpoints under amp: at every level the gradients have the bits of plain calls, and activations take little memory.
#include <apex_cpp/activation_checkpoint.h>
#include <apex_cpp/amp/comparison/measurement.h>
#include <apex_cpp/optimizers.h>

#include <thread>

#include "tests/amp/support.h"
#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

using torch::Tensor;

/// A block of a transformer, with dropout.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) : heads(4) {
    namespace nn = torch::nn;
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
    qkv = register_module("qkv", nn::Linear(width, 3 * width));
    out = register_module("out", nn::Linear(width, width));
    up = register_module("up", nn::Linear(width, 4 * width));
    down = register_module("down", nn::Linear(4 * width, width));
  }
  Tensor attention(const Tensor& x) {
    const auto parts = qkv(x).view({x.size(0), x.size(1), 3, heads, x.size(2) / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const Tensor weights = torch::softmax(parts[0].matmul(parts[1].transpose(-2, -1)) * 0.25, -1);
    return out(weights.matmul(parts[2]).transpose(1, 2).reshape(x.sizes()));
  }
  Tensor forward(const Tensor& x) {
    const Tensor h = x + torch::dropout(attention(norm1(x)), 0.1, is_training());
    return h + torch::dropout(down(torch::gelu(up(norm2(h)))), 0.1, is_training());
  }
  int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl(int64_t depth, int64_t width) {
    for (int64_t i = 0; i < depth; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(width)));
  }
  Tensor forward(Tensor x) {
    for (Block& block : blocks) x = checkpoints ? checkpoint(block, x) : block->forward(x);
    return x;
  }
  std::vector<Block> blocks;
  bool checkpoints = false;
};
TORCH_MODULE(Transformer);

class CheckpointLevels : public AmpTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, CheckpointLevels, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"));

std::string trained_at(const std::string& level, bool checkpoints, const torch::Device& device = torch::kCPU) {
  amp::reset();
  torch::manual_seed(3);
  Transformer model(3, 16);
  model->to(device);
  model->checkpoints = checkpoints;
  optimizers::FusedAdam adam(model->parameters(), optimizers::FusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(model, adam, level, quiet().loss_scale(8.0));
  const Tensor x = torch::randn({2, 5, 16}, device);
  for (int step = 0; step < 3; ++step) {
    opt.zero_grad();
    { amp::scale_loss(net->forward(x).to(torch::kFloat).square().mean(), opt).backward(); }
    opt.step();
  }
  std::string bytes;
  for (const Tensor& param : net->parameters()) bytes += bytes_of(param.cpu());
  for (const Tensor& master : amp::master_params(opt)) bytes += bytes_of(master.cpu());
  return bytes;
}

TEST_P(CheckpointLevels, TrainToTheBitsOfPlainCalls) { EXPECT_EQ(trained_at(GetParam(), true), trained_at(GetParam(), false)); }

class CheckpointCasts : public AmpTest {};

// The plain use leaves its cast of the weight in the cache: a cast outside of the function's graph.
TEST_F(CheckpointCasts, TakeNoneFromTheCacheAndLeaveTheThreadAsItWas) {
  for (const char* level : {"O1", "O4"}) {
    amp::reset();
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(1.0));
    const Tensor weight = model->fc1->weight, x = torch::ones({4, 6});
    const auto layer = [&weight](const Tensor& input) { return torch::linear(input, weight); };
    const Tensor plain = layer(x), again = checkpoint(layer, x);
    { amp::scale_loss((plain + again).to(torch::kFloat).sum(), opt).backward(); }
    EXPECT_TRUE(weight.grad().equal(torch::full({5, 6}, 8.0))) << level << ": each use has four rows of ones";
    checkpoint(layer, x).to(torch::kFloat).sum().backward();  // outside of a block, which would restore the casts, too
    layer(x);
    const amp::trace trace;
    layer(x);
    ASSERT_EQ(trace.ops().size(), 1u) << level;
    EXPECT_EQ(trace.ops()[0].cache_hits(), 1) << level << ": of the weight\n" << trace;
  }
}

TEST_F(CheckpointCasts, AreInTheTraceOfTheBackwardPass) {
  Mlp model;
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor loss = checkpoint(net, features()).to(torch::kFloat).sum();
  const amp::trace trace;
  loss.backward();
  size_t casts = 0;
  for (const auto& op : trace.ops()) casts += op.casts.size();
  EXPECT_EQ(casts, 5u) << "of the features, two weights and two biases\n" << trace;
}

// The first forward pass of a handle on a thread leaves casts on, for the loss. The function has both.
TEST_F(CheckpointCasts, GoOnBehindAForwardPassOnANewThreadInBothCalls) {
  const auto gradient = [](const char* level, bool checkpoints) {
    amp::reset();
    torch::manual_seed(3);
    Mlp model;
    auto net = amp::initialize(model, level, quiet());
    const auto loss_of = [&net](const Tensor& x) { return torch::log_softmax(net->forward(x), 1).square().mean(); };
    std::string error;
    std::thread([&] {
      error = message_of([&] {
        const Tensor loss = checkpoints ? checkpoint(loss_of, features()) : loss_of(features());
        EXPECT_EQ(loss.scalar_type(), torch::kFloat) << level;
        loss.backward();
      });
    }).join();
    EXPECT_EQ(error, "") << level;
    const Tensor grad = model->fc1->weight.grad();
    return grad.defined() ? bytes_of(grad) : "none";
  };
  for (const char* level : {"O1", "O4"}) EXPECT_EQ(gradient(level, true), gradient(level, false)) << level;
}

class CheckpointLevelsOnCuda : public CheckpointLevels {};
INSTANTIATE_TEST_SUITE_P(All, CheckpointLevelsOnCuda, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"));

// The backward pass computes again on a thread of autograd's, with the GPU's own generator.
TEST_P(CheckpointLevelsOnCuda, TrainToTheBitsOfPlainCalls) {
  APEX_CPP_NEEDS_GPUS(1);
  EXPECT_EQ(trained_at(GetParam(), true, torch::kCUDA), trained_at(GetParam(), false, torch::kCUDA));
}

TEST(CheckpointMemory, OfSixteenBlocksIsAtMostTwoFifths) {
  const auto peak = [](bool checkpoints) {
    torch::manual_seed(3);
    Transformer model(16, 64);
    model->checkpoints = checkpoints;
    const Tensor x = torch::randn({8, 32, 64});
    model->forward(x).square().mean().backward();  // allocates gradients
    const auto memory = std::make_shared<amp::detail::TensorMemory>();
    const amp::detail::Counting counting(memory);
    model->forward(x).square().mean().backward();
    return memory->take_peak();
  };
  const int64_t with = peak(true), without = peak(false);
  EXPECT_LE(5 * with, 2 * without) << with << " bytes of " << without;
  RecordProperty("share_in_percent", static_cast<int>(100 * with / without));
  std::cout << "peak of activations: " << with << " of " << without << " bytes\n";
}

}  // namespace
}  // namespace apex::test
