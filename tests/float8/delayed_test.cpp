// Delayed scaling in products, at O6, and in saved states.
#include <apex_cpp/activation_checkpoint.h>
#include <apex_cpp/amp/float8/product.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/optimizers.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/float8/float8.h"
#include "tests/amp/support.h"
#include "tests/errors.h"
#include "tests/float8/history.h"

namespace apex::test {
namespace {

using amp::detail::Float8Format;
using amp::detail::Float8History;
using amp::detail::Float8Recipe;
using amp::detail::Float8Role;
using amp::detail::Float8Rounding;
using kernels::Float8;
using torch::Tensor;

// ---- products ----

constexpr int64_t kUnits = 32;

Float8Rounding delayed(const Tensor& scales, const Tensor& largest = {}) {
  return {Float8Recipe::delayed, Float8Format::e5m2, {scales, largest}};
}

Tensor with_scale(const Tensor& x, Float8 format, double scale) {
  return kernels::round_to_float8_with(x.detach(), format, torch::full({1}, scale)).rounded.values;
}

struct Operands {
  Tensor x = torch::randn({16, kUnits}).to(torch::kBFloat16).requires_grad_();
  Tensor w = torch::randn({48, kUnits}).to(torch::kBFloat16).requires_grad_();
  Tensor grad = torch::randn({16, 48}).to(torch::kBFloat16);
};

Tensor linear(const Operands& operands, const Float8Rounding& rounding) {
  return amp::detail::float8_linear({operands.x}, {operands.w, Float8Role::weight}, {}, rounding);
}

// The scales of activation, weight and gradient differ, and none is what the operand would take itself.
TEST(DelayedProducts, TakeTheGivenScales) {
  torch::manual_seed(3);
  const Operands operands;
  const Tensor largest = torch::zeros({3});
  const Tensor y = linear(operands, delayed(torch::tensor({2.0F, 256.0F, 8.0F}), largest));
  y.backward(operands.grad);
  const Tensor x = with_scale(operands.x, Float8::e4m3, 2), w = with_scale(operands.w, Float8::e4m3, 256),
               grad = with_scale(operands.grad, Float8::e5m2, 8);
  EXPECT_TRUE(torch::equal(y, torch::mm(x, w.t())));
  EXPECT_TRUE(torch::equal(operands.x.grad(), torch::mm(grad, w)));
  EXPECT_TRUE(torch::equal(operands.w.grad(), torch::mm(grad.t(), x)));
  EXPECT_TRUE(torch::equal(
      largest, torch::stack({operands.x.abs().max(), operands.w.abs().max(), operands.grad.abs().max()}).to(torch::kFloat)));
}

TEST(DelayedProducts, HaveSecondDerivativesThatTheHistoryDoesNotSee) {
  torch::manual_seed(4);
  const Operands operands;
  const Tensor largest = torch::zeros({3});
  const Tensor y = linear(operands, delayed(torch::tensor({64.0F, 64.0F, 4096.0F}), largest));
  const Tensor first = torch::autograd::grad({y}, {operands.x}, {operands.grad}, true, true)[0];
  const Tensor second = torch::autograd::grad({first}, {operands.w}, {first.detach()})[0];
  EXPECT_EQ(largest[2].item<float>(), 0);
  const Tensor grad = operands.grad.to(torch::kDouble);
  const Tensor exact = grad.t().matmul(grad.matmul(operands.w.detach().to(torch::kDouble)));
  EXPECT_LT((second.to(torch::kDouble) - exact).norm().item<double>(), 0.1 * exact.norm().item<double>());  // 20 dB
}

// ---- the level ----

struct ThreeLayersImpl : torch::nn::Module {
  ThreeLayersImpl() {
    first = register_module("first", torch::nn::Linear(kUnits, kUnits));
    middle = register_module("middle", torch::nn::Linear(kUnits, kUnits));
    last = register_module("last", torch::nn::Linear(kUnits, kUnits));
  }
  Tensor forward(const Tensor& x) {
    const auto inner = [this](const Tensor& h) { return middle(h).relu(); };
    const Tensor h = first(x).relu();
    return last(recomputes ? checkpoint(inner, h) : inner(h));
  }
  bool recomputes = false;
  torch::nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
};
TORCH_MODULE(ThreeLayers);

amp::InitializeOptions delayed_options() { return quiet().fp8("delayed").skip_nonfinite(true); }

using Handles = decltype(amp::initialize(std::declval<ThreeLayers&>(), std::declval<optimizers::FusedAdam&>(), "O6",
                                         std::declval<amp::InitializeOptions&>()));

struct Training {
  explicit Training(amp::InitializeOptions options = delayed_options(), const char* level = "O6") {
    torch::manual_seed(7);
    stack = ThreeLayers();
    adam = std::make_unique<optimizers::FusedAdam>(stack->parameters(), optimizers::FusedAdamOptions(1e-2));
    handles = std::make_unique<Handles>(amp::initialize(stack, *adam, level, options));
  }
  auto& net() { return std::get<0>(*handles); }
  auto& opt() { return std::get<1>(*handles); }

  void step(int number, double factor = 1, bool recomputes = false) {
    torch::manual_seed(100 + number);
    const Tensor x = torch::randn({16, kUnits}) * (1 + number);
    opt().zero_grad();
    const Tensor y = recomputes ? checkpoint(net(), x) : net()->forward(x);
    { amp::scale_loss((y.to(torch::kFloat) - x).square().mean() * factor, opt()).backward(); }
    opt().step();
  }
  std::string bytes() {
    std::string all;
    for (const Tensor& param : net()->parameters()) all += bytes_of(param);
    for (const Tensor& master : amp::master_params(opt())) all += bytes_of(master);
    return all;
  }

  ThreeLayers stack{nullptr};
  std::unique_ptr<optimizers::FusedAdam> adam;
  std::unique_ptr<Handles> handles;
};

class Delayed : public AmpTest {
 protected:
  static const Float8History& history() { return *amp::detail::current_session()->float8_history(); }
  static std::string path() {
    return (std::filesystem::temp_directory_path() / ("delayed_" + std::to_string(getpid()))).string();
  }
};

TEST_F(Delayed, TrainsItsFirstStepAsCurrentScalingDoes) {
  Training current(quiet().skip_nonfinite(true));
  current.step(0);
  const std::string expected = current.bytes();
  amp::reset();
  Training training;
  training.step(0);
  EXPECT_EQ(training.bytes(), expected);
  training.step(1);
  EXPECT_NE(training.bytes(), expected);
}

// The second pass rounds with the magnitudes of the first one: inputs that have become larger saturate.
TEST_F(Delayed, RoundsWithTheMagnitudesOfEarlierPasses) {
  Training training;
  const Tensor x = torch::randn({16, kUnits}).to(torch::kBFloat16);
  auto& middle = training.stack->middle;
  {
    auto scaled = amp::scale_loss(middle->forward(x).sum().to(torch::kFloat), training.opt());
    scaled.backward();
  }
  const Tensor state = amp::state_dict().float8_history;
  ASSERT_EQ(state.sizes(), at::IntArrayRef({1, 3, 3}));
  const Tensor expected = torch::stack({x.abs().max(), middle->weight.abs().max(), torch::tensor(1).to(torch::kBFloat16)});
  EXPECT_TRUE(torch::equal(state[0][1], expected.to(torch::kFloat)));
  EXPECT_EQ(state[0][0].abs().sum().item<double>(), 0);  // the first and the last layer stay in bfloat16
  EXPECT_EQ(state[0][2].abs().sum().item<double>(), 0);
  const Tensor larger = x * 16, y = middle->forward(larger);
  const amp::disable_casts casts_off;
  const double scale = kernels::float8_scales(x.abs().max().to(torch::kFloat), Float8::e4m3).item<double>();
  const Tensor weight = kernels::round_to_float8(middle->weight.detach(), Float8::e4m3, {}).values;
  EXPECT_TRUE(torch::equal(y, torch::linear(with_scale(larger, Float8::e4m3, scale), weight, middle->bias)));
}

TEST_F(Delayed, SkipsAStepWithoutATrace) {
  Training training;
  training.step(0);
  const Tensor before = history().state();
  const std::string bytes = training.bytes();
  training.step(1, kInf);
  EXPECT_TRUE(amp::step_result(training.opt()).skipped);
  EXPECT_TRUE(torch::equal(history().state(), before));
  EXPECT_EQ(recorded(history()), 0);
  EXPECT_EQ(training.bytes(), bytes);
}

TEST_F(Delayed, ForgetsAPassThatThrows) {
  Training training;
  training.step(0);
  const Tensor before = history().state();
  try {
    auto scaled = amp::scale_loss(training.net()->forward(torch::randn({16, kUnits})).sum(), training.opt());
    throw std::runtime_error("the program's own");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(torch::equal(history().state(), before));
  EXPECT_EQ(recorded(history()), 0);
}

TEST_F(Delayed, RecomputesToTheBitsOfAPlainPass) {
  const auto trained = [](bool recomputes) {
    amp::reset();
    Training training;
    for (int step = 0; step < 4; ++step) training.step(step, 1, recomputes);
    return training.bytes() + bytes_of(history().state());
  };
  EXPECT_EQ(trained(true), trained(false));
}

/// Between the forward pass of `first` and its repetition, the block of `second` ends a pass.
std::string bytes_after_a_step_of(Training& training, const Tensor& first, const Tensor& second) {
  { amp::scale_loss(second, training.opt()).backward(); }
  training.opt().zero_grad();
  { amp::scale_loss(first, training.opt()).backward(); }
  training.opt().step();
  return training.bytes();
}

TEST_F(Delayed, RecomputesWithTheScalesOfTheForwardPass) {
  const auto grads = [](bool recomputes) {
    amp::reset();
    Training training;
    training.step(0);
    const auto forward = [&](const Tensor& x) {
      return recomputes ? checkpoint(training.net(), x) : training.net()->forward(x);
    };
    const Tensor x = torch::randn({16, kUnits});
    const Tensor first = forward(x * 1000).to(torch::kFloat).sum(), second = forward(x).to(torch::kFloat).sum();
    return bytes_after_a_step_of(training, first, second);
  };
  EXPECT_EQ(grads(true), grads(false));
}

// The newest initialize has a history of its own.
TEST_F(Delayed, RecomputesAPartWithTheScalesOfItsOwnSession) {
  const auto trained = [](bool recomputes) {
    amp::reset();
    Training training;
    training.net()->recomputes = recomputes;
    training.step(0);
    ThreeLayers other;
    const auto later = amp::initialize(other, "O6", delayed_options());
    const Tensor x = torch::randn({16, kUnits});
    const auto loss_of = [&](double factor) { return training.net()->forward(x * factor).to(torch::kFloat).sum(); };
    const Tensor first = loss_of(1000), second = loss_of(1);
    return bytes_after_a_step_of(training, first, second);
  };
  EXPECT_EQ(trained(true), trained(false));
}

// Two models, as in a GAN: the block of one optimizer, skipped or not, leaves the pass of the other open.
TEST_F(Delayed, EndsThePassOfTheBlocksOptimizers) {
  for (const bool overflows : {false, true}) {
    amp::reset();
    ThreeLayers a, b;
    torch::optim::SGD of_a(a->parameters(), 0.1), of_b(b->parameters(), 0.1);
    auto [nets, opts] = amp::initialize(std::tie(a, b), std::tie(of_a, of_b), "O6", delayed_options().num_losses(2));
    const int64_t weight_of_a = *history().row_of("model0.middle.weight");
    const Tensor x = torch::ones({16, kUnits}, torch::kBFloat16);
    const Tensor loss_a = a->middle(x * 64).to(torch::kFloat).sum(), loss_b = b->middle(x).to(torch::kFloat).sum();
    { amp::scale_loss(loss_b * (overflows ? kInf : 1), std::get<1>(opts), amp::ScaleLossOptions().loss_id(1)).backward(); }
    EXPECT_EQ(history().state().size(0), overflows ? 0 : 1);
    EXPECT_EQ(history().largest({weight_of_a})[0][0].item<double>(), 64);
    { amp::scale_loss(loss_a, std::get<0>(opts)).backward(); }
    EXPECT_EQ(history().largest({weight_of_a}).sum().item<double>(), 0);
    EXPECT_EQ(history().state().select(0, -1)[weight_of_a][0].item<double>(), 64);
  }
}

// Without masters and loss scales a block has nothing else to do.
TEST_F(Delayed, HasAHistoryWithoutMasters) {
  Training training(quiet().fp8("delayed").master_weights(false));
  training.step(0);
  EXPECT_EQ(history().state().size(0), 1);
}

TEST_F(Delayed, RecordsEachPassOfAnAccumulation) {
  Training training;
  for (int pass = 0; pass < 3; ++pass) {
    const Tensor loss = training.net()->forward(torch::randn({16, kUnits})).sum();
    amp::scale_loss(loss, training.opt(), amp::ScaleLossOptions().delay_unscale(pass < 2)).backward();
  }
  EXPECT_EQ(history().state().size(0), 3);
}

// ---- saved states ----

std::string after_resume(const std::function<void(Training&)>& save, const std::function<void(Training&)>& load) {
  amp::reset();
  {
    Training training;
    for (int step = 0; step < 3; ++step) training.step(step);
    save(training);
  }
  amp::reset();
  Training training;
  training.step(9);  // another past
  load(training);
  for (int step = 3; step < 6; ++step) training.step(step);
  return training.bytes();
}

std::string uninterrupted() {
  amp::reset();
  Training training;
  for (int step = 0; step < 6; ++step) training.step(step);
  return training.bytes();
}

TEST_F(Delayed, ResumesToTheBitsFromACheckpoint) {
  const std::string file = path() + ".safetensors";
  const auto save = [&](Training& training) { amp::save_checkpoint(file, training.net(), training.opt()); };
  const auto load = [&](Training& training) {
    EXPECT_TRUE(amp::load_checkpoint(file, training.net(), training.opt()).notes.empty());
  };
  EXPECT_EQ(after_resume(save, load), uninterrupted());
  std::filesystem::remove(file);
}

TEST_F(Delayed, SavesAndLoadsItsHistoryInAStateDict) {
  const std::string file = path() + ".pt";
  Training training;
  for (int step = 0; step < 3; ++step) training.step(step);
  const Tensor saved = history().state();
  torch::save(amp::state_dict(), file);
  training.step(3);
  EXPECT_FALSE(torch::equal(history().state(), saved));
  amp::StateDict read;
  torch::load(read, file);
  amp::load_state_dict(read);
  EXPECT_TRUE(torch::equal(history().state(), saved));
  std::filesystem::remove(file);
}

TEST_F(Delayed, RefusesAStateOfOtherWeightsBeforeAnyChange) {
  Training training;
  training.step(0);
  amp::StateDict state = amp::state_dict();
  const Tensor before = state.float8_history;
  state.float8_history = torch::zeros({2, 7, 3});
  expect_error<c10::ValueError>([&] { amp::load_state_dict(state); }, {"the FP8 history", "[2, 7, 3]"});
  EXPECT_TRUE(torch::equal(history().state(), before));
}

TEST_F(Delayed, TakesAStateWithoutAHistory) {
  Training training;
  training.step(0);
  amp::StateDict state = amp::state_dict();
  state.float8_history = Tensor();
  testing::internal::CaptureStdout();
  amp::load_state_dict(state);
  EXPECT_TRUE(contains(testing::internal::GetCapturedStdout(), "No FP8 history was saved"));
  EXPECT_EQ(history().state().size(0), 0);
}

TEST_F(Delayed, LeavesOtherRecipesWithoutAHistory) {
  Training delayed_training;
  delayed_training.step(0);
  const auto state = amp::state_dict();
  amp::reset();
  Training training(quiet());
  EXPECT_FALSE(amp::state_dict().float8_history.defined());
  testing::internal::CaptureStdout();
  amp::load_state_dict(state);
  EXPECT_TRUE(contains(testing::internal::GetCapturedStdout(), "not used without fp8 delayed"));
}

TEST_F(Delayed, NotesWhatACheckpointLacks) {
  const std::string file = path() + ".safetensors";
  {
    Training training(quiet());
    training.step(0);
    amp::save_checkpoint(file, training.net(), training.opt());
  }
  amp::reset();
  Training training;
  training.step(1);
  const auto notes = amp::load_checkpoint(file, training.net(), training.opt()).notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(contains(notes[0], "No FP8 history was saved"));
  EXPECT_EQ(history().state().size(0), 0);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace apex::test
