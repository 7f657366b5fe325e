// Weights written without amp's knowledge: the next forward pass must not use stale cached casts (O1, O4): BUG-01, CACHE-07.
// The reference casts by hand, with amp's casts off.
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

struct WrittenWeights : AmpTest, ::testing::WithParamInterface<const char*> {
  at::ScalarType low() const { return std::string(GetParam()) == "O4" ? torch::kBFloat16 : torch::kHalf; }

  Tensor by_hand(const Mlp& mlp) const {
    const amp::disable_casts casts_off;
    const auto linear = [&](const Tensor& x, const torch::nn::Linear& fc) {
      return torch::linear(x.to(low()), fc->weight.to(low()), fc->bias.to(low()));
    };
    return linear(torch::relu(linear(features(), mlp->fc1)), mlp->fc2);
  }
  // With and without gradients, twice each: the second pass uses the cache that the first one filled.
  template <class Net>
  void expect_present_weights(Net& net, const Mlp& mlp, const char* when) const {
    for (const bool gradients : {true, true, false, false}) {
      const at::AutoGradMode mode(gradients);
      EXPECT_TRUE(torch::equal(net->forward(features()), by_hand(mlp))) << when << (gradients ? "" : ", without gradients");
    }
  }
  template <class Opt>
  static void train(const Tensor& output, Opt& opt) {
    {
      auto scaled = amp::scale_loss(output.to(torch::kFloat).square().mean(), opt);
      scaled.backward();
    }
    opt.step();
    opt.zero_grad();
  }
  // Through `data()`, which leaves no trace.
  template <class Write>
  static void write_weights(const Mlp& to, const Mlp& from, Write&& write) {
    for (size_t i = 0; i < to->parameters().size(); ++i) write(to->parameters()[i].data(), from->parameters()[i].data());
  }

  Mlp model, other;
  torch::optim::SGD optimizer{model->parameters(), 0.1};
};

TEST_P(WrittenWeights, AModelUnderAPlainOptimizerUsesItsCurrentWeights) {
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  torch::optim::SGD plain(other->parameters(), 0.5);
  for (int i = 0; i < 3; ++i) {
    plain.zero_grad();
    const Tensor loss = other->forward(features()).to(torch::kFloat).square().mean();
    const auto want = torch::autograd::grad({by_hand(other).to(torch::kFloat).square().mean()}, other->parameters());
    loss.backward();
    for (size_t k = 0; k < want.size(); ++k) EXPECT_TRUE(torch::equal(other->parameters()[k].grad(), want[k])) << i << k;
    plain.step();
    expect_present_weights(other, other, "after a step of plain SGD");
    train(net->forward(features()), opt);
  }
}

TEST_P(WrittenWeights, AnEmaTargetUsesItsCurrentWeights) {
  auto [nets, opt] = amp::initialize(std::tie(model, other), optimizer, GetParam(), quiet().loss_scale(8.0));
  auto& [net, target] = nets;
  for (int i = 0; i < 3; ++i) {
    const Tensor wanted = target->forward(features()).detach();
    train(net->forward(features()) - wanted, opt);
    write_weights(other, model, [](Tensor to, const Tensor& from) { to.mul_(0.75).add_(from, 0.25); });
    expect_present_weights(target, other, "the target's handle");
    expect_present_weights(other, other, "the target itself");
  }
}

TEST_P(WrittenWeights, ACopyIntoTheTargetIsDetected) {
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  expect_present_weights(other, other, "before");
  train(net->forward(features()), opt);
  write_weights(other, model, [](Tensor to, const Tensor& from) { to.copy_(from); });
  expect_present_weights(other, other, "after the copy");
  EXPECT_TRUE(torch::equal(other->forward(features()), net->forward(features())));
}

TEST_P(WrittenWeights, AClampAfterTheStepIsDetected) {  // as WGAN's critic is trained
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  for (const bool traced : {true, false}) {
    train(net->forward(features()), opt);
    const torch::NoGradGuard no_grad;
    for (auto& p : model->parameters()) (traced ? p : p.data()).clamp_(-0.05, 0.05);
    const at::AutoGradMode with_gradients(true);
    expect_present_weights(model, model, "the original");
    expect_present_weights(net, model, "the handle");
  }
}

// A program that evaluates without NoGradGuard and swaps weights in between: nothing clears the cache.
TEST_P(WrittenWeights, AHandleDetectsWritesBetweenEvaluationsWithGradients) {
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  expect_present_weights(net, model, "before");
  for (int i = 0; i < 2; ++i) {
    const Tensor pending = net->forward(features());
    write_weights(model, other, [](Tensor to, Tensor from) {
      const Tensor kept = to.clone();
      to.copy_(from);
      from.copy_(kept);
    });
    EXPECT_TRUE(torch::equal(net->forward(features()), by_hand(model)));
    expect_present_weights(net, model, "after the swap");
  }
}

// All weights are views into one flat buffer, and the program switches to another part of it.
TEST_P(WrittenWeights, ReplacedDataInTheSameStorageIsDetected) {
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  int64_t total = 0;
  for (const auto& p : model->parameters()) total += p.numel();
  const Tensor flat = torch::randn({2 * total});
  for (const int64_t start : {int64_t{0}, total}) {
    int64_t place = start;
    for (auto& p : model->parameters()) {
      p.set_data(flat.narrow(0, place, p.numel()).view(p.sizes()));
      place += p.numel();
    }
    expect_present_weights(model, model, "the original");
    expect_present_weights(net, model, "the handle");
    net->forward(features());  // with gradients: its casts are there when the weights change
  }
}

TEST_P(WrittenWeights, TheOriginalDetectsWritesAfterClearCastCache) {
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  model->forward(features());
  for (auto& p : model->parameters()) p.data().mul_(0.5);
  amp::clear_cast_cache();
  expect_present_weights(model, model, "after clear_cast_cache");
}

INSTANTIATE_TEST_SUITE_P(Levels, WrittenWeights, ::testing::Values("O1", "O4"), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace apex::test
