// Whole training loops under GradScaler and autocast, each against the same loop without. After PyTorch's test_grad_scaling_*.
// Scales are powers of two: where nothing else differs, both loops must agree to the bit.
#include "tests/torch_amp/grad_scaler_support.h"

#include <functional>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

namespace apex::test {
namespace {

using amp::GradScaler;
using torch::Tensor;
using torch::nn::utils::clip_grad_norm_;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;

constexpr double kInitScale = 128.0, kGrowth = 2.0, kBackoff = 0.5;
constexpr double kExact = 0.0;
constexpr size_t kBrokenIteration = 2;

struct Batch {
  Tensor input, target;
};

/// A model of two linear layers, and its optimizer.
struct Side {
  torch::nn::Sequential model;
  OptimizerPtr optimizer;

  std::vector<Tensor> params() const { return model->parameters(); }
  Tensor loss(const Batch& batch) { return torch::mse_loss(model->forward(batch.input), batch.target); }
  /// As an overflow in the backward pass would.
  void break_gradient() const { params()[2].mutable_grad().fill_(INFINITY); }
};

/// One pass of a loop body: `scaling` says on which of the two sides it is.
struct Iteration {
  Side& side;
  GradScaler& scaler;
  const Batch& batch;
  size_t index;
  bool scaling;
  bool breaks;

  torch::optim::Optimizer& optimizer() const { return *side.optimizer; }
  Tensor scaled(const Tensor& loss) const { return scaling ? scaler.scale(loss) : loss; }
  void break_gradient() const {
    if (scaling && breaks) side.break_gradient();
  }
  void step() const {
    if (scaling) {
      scaler.step(optimizer());
      scaler.update();
    } else if (!breaks) {
      optimizer().step();
    }
  }
};

using MakeOptimizer = std::function<OptimizerPtr(std::vector<Tensor>)>;

template <class Opt, class Options>
MakeOptimizer maker(const Options& options) {
  return [options](std::vector<Tensor> params) { return std::make_unique<Opt>(std::move(params), options); };
}
MakeOptimizer plain_sgd() { return maker<torch::optim::SGD>(torch::optim::SGDOptions(1.0)); }
MakeOptimizer plain_adamw(bool amsgrad) { return maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1).amsgrad(amsgrad)); }
MakeOptimizer fused_adamw(bool amsgrad) { return maker<FusedAdamW>(torch::optim::AdamWOptions(0.1).amsgrad(amsgrad)); }

class GradScalerTraining : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    for (int i = 0; i < 4; ++i) data_.push_back({torch::randn({8, 8}, options()), torch::randn({8, 8}, options())});
  }

  const std::vector<Batch>& data() const { return data_; }

  Side make_side(const MakeOptimizer& make = plain_sgd(), uint64_t seed = 11) const {
    torch::manual_seed(seed);
    Side side{torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8)), nullptr};
    side.model->to(device());
    side.optimizer = make(side.params());
    return side;
  }

  GradScaler make_scaler(bool enabled = true) const {
    return GradScaler(scaler_options().init_scale(kInitScale).growth_interval(1).enabled(enabled));
  }

  static double scale_after(int unskipped, int skipped) {
    return kInitScale * std::pow(kGrowth, unskipped) * std::pow(kBackoff, skipped);
  }

  static void expect_same(const Side& a, const Side& b, double tolerance) {
    for (size_t i = 0; i < a.params().size(); ++i) {
      const auto p = a.params()[i], q = b.params()[i];
      EXPECT_TRUE(torch::allclose(p, q, 0, tolerance)) << "parameter " << i << " differs by " << item((p - q).abs().max());
      EXPECT_TRUE(torch::allclose(p.grad(), q.grad(), 0, tolerance)) << "gradient " << i;
    }
  }

  /// Runs the loop without and with the scaler: same parameters and gradients, and the scale that the counts say; and once more
  /// with the scaler disabled, where nothing is skipped.
  void compare(const std::function<void(Iteration)>& body, int unskipped, int skipped, double tolerance = kExact,
               const MakeOptimizer& make = plain_sgd()) {
    for (const bool enabled : {true, false}) {
      SCOPED_TRACE(enabled ? "enabled" : "disabled");
      auto control = make_side(make), scaled = make_side(make);
      auto scaler = make_scaler(enabled);
      for (auto* side : {&control, &scaled}) {
        for (size_t i = 0; i < data_.size(); ++i) {
          body({*side, scaler, data_[i], i, side == &scaled, enabled && skipped > 0 && i == kBrokenIteration});
        }
      }
      EXPECT_EQ(scaler.get_scale(), enabled ? scale_after(unskipped, skipped) : 1.0);
      expect_same(control, scaled, tolerance);
    }
  }

 private:
  std::vector<Batch> data_;
};
INSTANTIATE_TEST_SUITE_P(Devices, GradScalerTraining, kDevices);

// ---- upstream: test_grad_scaling_autocast, _foreach, _fused

void through_archive(GradScaler& scaler, const amp::GradScalerOptions& options) {
  std::stringstream stream;
  torch::save(scaler, stream);
  scaler = GradScaler(options);
  torch::load(scaler, stream);
}

TEST_P(GradScalerTraining, GradScalingAutocastTrainsAsWithoutAndSurvivesSavingEveryIteration) {
  for (const bool saved : {false, true}) {
    const auto body = [&](Iteration it) {
      it.optimizer().zero_grad();
      Tensor loss;
      {
        const amp::autocast guard(device().type(), torch::kHalf, it.scaling);
        loss = it.side.loss(it.batch);
      }
      it.scaled(loss).backward();
      it.break_gradient();
      it.step();
      if (saved && it.scaling && it.scaler.is_enabled()) through_archive(it.scaler, scaler_options());
    };
    // Some ten roundings to FP16 change a gradient below 0.3 by 10 * 2^-11 of it, in each of three steps with the rate
    // 1: 4.4e-3.
    compare(body, 3, 1, 5e-3);
  }
}

TEST_P(GradScalerTraining, GradScalingOfEveryOptimizerIsExact) {
  const auto body = [](Iteration it) {
    it.optimizer().zero_grad();
    it.scaled(it.side.loss(it.batch)).backward();
    it.break_gradient();
    it.step();
  };
  compare(body, 3, 1, kExact, plain_adamw(true));
  compare(body, 3, 1, kExact, maker<FusedSgd>(torch::optim::SGDOptions(1.0)));
  for (const bool amsgrad : {false, true}) compare(body, 3, 1, kExact, fused_adamw(amsgrad));
}

// ---- upstream: test_grad_scaling_autocast_fused_optimizers

TEST_P(GradScalerTraining, GradScalingAutocastFusedOptimizersTrainAsPlainOnes) {
  for (const bool amsgrad : {false, true}) {
    for (const bool separate_unscale : {false, true}) {
      auto plain = make_side(plain_adamw(amsgrad)), fused = make_side(fused_adamw(amsgrad));
      for (auto* side : {&plain, &fused}) {
        auto scaler = make_scaler();
        for (const auto& batch : data()) {
          side->optimizer->zero_grad();
          scaler.scale(side->loss(batch)).backward();
          if (separate_unscale) scaler.unscale_(*side->optimizer);
          if (&batch == &data()[kBrokenIteration] && !separate_unscale) side->break_gradient();
          scaler.step(*side->optimizer);
          scaler.update();
        }
        EXPECT_EQ(scaler.get_scale(), separate_unscale ? scale_after(4, 0) : scale_after(3, 1));
      }
      // Some ten roundings of 2^-24 in each of four steps of 0.1 move parameters, and so gradients, by 2.4e-7. Adam divides
      // gradients by their size: where one is a hundredth of the others, four steps are off by 4 * 0.1 * 100 * 2.4e-7 = 1e-5.
      expect_same(plain, fused, 1e-5);
      const auto& optimizer = static_cast<FusedAdamW&>(*fused.optimizer);
      EXPECT_EQ(optimizer.steps_called, 4) << "skips inside its own step";
      EXPECT_EQ(optimizer.saw_scale, !separate_unscale);
    }
  }
}

// ---- upstream: test_grad_scaler_pass_itself

struct Recorder : torch::optim::SGD, amp::StepSupportsAmpScaling {
  using SGD::SGD;
  Tensor step(LossClosure = nullptr) override {
    TORCH_CHECK(!fails, "the step failed");
    seen_scale = grad_scale, seen_inf = found_inf;
    return torch::full({}, 5.0);
  }
  Tensor seen_scale, seen_inf;
  bool fails = false;
};

TEST_P(GradScalerTraining, GradScalerPassesScaleAndFlagToTheStepOnly) {
  auto param = param_with_grad(torch::full({2}, 4.0, options()));
  auto half = param_with_grad(torch::full({2}, 4.0, options(torch::kHalf)));
  Recorder optimizer({param, half}, torch::optim::SGDOptions(1.0));
  auto scaler = make_scaler();
  scaler.scale(param);
  EXPECT_EQ(item(scaler.step(optimizer).value()), 5.0f);
  EXPECT_EQ(item(optimizer.seen_scale), kInitScale);
  EXPECT_EQ(item(optimizer.seen_inf), 0.0f);
  EXPECT_EQ(item(param.grad()[0]), 4.0f) << "left to the optimizer to unscale, half gradients too";
  EXPECT_FALSE(optimizer.grad_scale.defined() || optimizer.found_inf.defined());
  scaler.update();

  param.mutable_grad()[1].fill_(NAN);
  optimizer.grad_scale = torch::full({}, 2.0, options());
  EXPECT_TRUE(scaler.step(optimizer)) << "called after an overflow, too";
  EXPECT_EQ(item(optimizer.seen_scale), 2 * 2 * kInitScale) << "times the user's own scale";
  EXPECT_EQ(item(optimizer.seen_inf), 1.0f);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), kInitScale);

  optimizer.fails = true;
  EXPECT_TRUE(contains(message_of([&] { scaler.step(optimizer); }), "the step failed"));
  EXPECT_FALSE(optimizer.grad_scale.defined() || optimizer.found_inf.defined());
}

// ---- upstream: test_params_invalidated_with_grads_invalidated_between_unscale_and_step

TEST_P(GradScalerTraining, ParamsInvalidatedWithGradsInvalidatedBetweenUnscaleAndStep) {
  for (const auto& make : {plain_adamw(false), fused_adamw(false)}) {
    auto side = make_side(make);
    auto scaler = make_scaler();
    scaler.scale(side.loss(data()[0])).backward();
    scaler.unscale_(*side.optimizer);
    for (const auto& param : side.params()) param.mutable_grad().fill_(NAN);
    scaler.step(*side.optimizer);
    scaler.update();
    for (const auto& param : side.params()) EXPECT_TRUE(param.isnan().all().item<bool>()) << "unscale_ had looked already";
    EXPECT_EQ(scaler.get_scale(), scale_after(1, 0));
  }
}

// ---- upstream: test_grad_scale_will_not_overflow

TEST_P(GradScalerTraining, GradScaleWillNotOverflow) {
  torch::nn::Linear model(5, 1);
  model->to(device());
  torch::optim::Adam optimizer(model->parameters());
  GradScaler scaler(scaler_options().init_scale(1e38).growth_interval(1).growth_factor(16.0));
  const auto x = torch::randn({1, 5}, options()), y = 1e-30 * torch::randn({1, 1}, options());
  scaler.scale((model(x) - y).square().mean() * 1e-30).backward();
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(static_cast<float>(scaler.get_scale()), 1e38f) << "16 times it would be infinite";
}

// ---- upstream: test_grad_scaling_clipping, _clipping_separate_unscale

constexpr double kMaxNorm = 0.2;

TEST_P(GradScalerTraining, GradScalingClippingByTheScaledNorm) {
  const auto body = [](Iteration it) {
    it.optimizer().zero_grad();
    it.scaled(it.side.loss(it.batch)).backward();
    clip_grad_norm_(it.side.params(), it.scaling ? kMaxNorm * it.scaler.get_scale() : kMaxNorm);
    it.break_gradient();
    it.step();
  };
  // The 1e-6 in the coefficient's denominator takes up to 5e-6 of gradients up to 0.2, unless they are scaled: 1e-6 in each of
  // three steps with the rate 1. Later gradients follow the parameters.
  compare(body, 3, 1, 1e-5);
}

TEST_P(GradScalerTraining, GradScalingClippingSeparateUnscale) {
  const auto body = [](Iteration it) {
    it.optimizer().zero_grad();
    it.scaled(it.side.loss(it.batch)).backward();
    it.break_gradient();
    if (it.scaling) it.scaler.unscale_(it.optimizer());
    clip_grad_norm_(it.side.params(), kMaxNorm);
    it.step();
  };
  compare(body, 3, 1);
}

// ---- upstream: test_grad_scaling_penalty

TEST_P(GradScalerTraining, GradScalingPenaltyByDoubleBackward) {
  const auto body = [](Iteration it) {
    it.optimizer().zero_grad();
    auto loss = it.side.loss(it.batch);
    auto grads = torch::autograd::grad({it.scaled(loss)}, it.side.params(), {}, std::nullopt, /*create_graph=*/true);
    Tensor penalty = torch::zeros_like(loss);
    for (const auto& grad : grads) penalty = penalty + (it.scaling ? grad / it.scaler.get_scale() : grad).square().sum();
    it.scaled(loss + penalty.sqrt()).backward();
    it.break_gradient();
    it.step();
  };
  // The graphs differ, so autograd may add the same terms in another order: some ten roundings of 2^-24 of gradients near 1, in
  // each of three steps with the rate 1: 2e-6. Later gradients follow the parameters.
  compare(body, 3, 1, 1e-5);
}

// ---- upstream: test_grad_scaling_accumulation

TEST_P(GradScalerTraining, GradScalingAccumulationUpdatesAtTheBoundaryOnly) {
  const auto body = [](Iteration it) {
    if (it.index == 0) it.optimizer().zero_grad();
    it.scaled(it.side.loss(it.batch) / 2).backward();
    if (it.index % 2 == 0) return;
    it.step();
    if (it.index == 1) it.optimizer().zero_grad();
  };
  compare(body, 2, 0);
}

// ---- upstream: test_grad_scaling_multiple

TEST_P(GradScalerTraining, GradScalingMultipleOptimizersSkipIndependently) {
  for (const bool enabled : {true, false}) {
    auto scaler = make_scaler(enabled);
    Side control[] = {make_side(), make_side(plain_sgd(), 12)}, scaled[] = {make_side(), make_side(plain_sgd(), 12)};
    for (auto* sides : {control, scaled}) {
      const bool scaling = sides == scaled;
      for (const auto& batch : data()) {
        const bool breaks = enabled && &batch == &data()[kBrokenIteration];
        for (auto* side : {&sides[0], &sides[1]}) side->optimizer->zero_grad();
        const auto output0 = sides[0].model->forward(batch.input), output1 = sides[1].model->forward(batch.input);
        const auto loss0 = torch::mse_loss(0.3 * output0 + 0.7 * output1, batch.target);
        const auto loss1 = torch::mse_loss(0.6 * output0 - 0.4 * output1, batch.target);
        (scaling ? scaler.scale(loss0) : loss0).backward({}, /*retain_graph=*/true);
        (scaling ? scaler.scale(loss1) : loss1).backward();
        if (scaling) {
          if (breaks) sides[1].break_gradient();
          scaler.unscale_(*sides[0].optimizer);
          for (auto* side : {&sides[0], &sides[1]}) scaler.step(*side->optimizer);
          scaler.update();
        } else {
          sides[0].optimizer->step();
          if (!breaks) sides[1].optimizer->step();
        }
      }
    }
    EXPECT_EQ(scaler.get_scale(), enabled ? scale_after(3, 1) : 1.0);
    for (int i : {0, 1}) expect_same(control[i], scaled[i], kExact);
  }
}

// ---- a step that throws, as without memory for the optimizer's state

struct MayThrow {
  bool throws_next = false;
};

template <class Opt>
struct MayThrowAs : Opt, MayThrow {
  using Opt::Opt;
  Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    TORCH_CHECK(!std::exchange(throws_next, false), "the step failed");
    return Opt::step(std::move(closure));
  }
};

std::vector<MakeOptimizer> makers_that_may_throw() {
  const torch::optim::SGDOptions options(1.0);
  return {maker<MayThrowAs<torch::optim::SGD>>(options), maker<MayThrowAs<FusedSgd>>(options)};
}

void expect_throwing_step(GradScaler& scaler, Side& side) {
  dynamic_cast<MayThrow&>(*side.optimizer).throws_next = true;
  EXPECT_TRUE(contains(message_of([&] { scaler.step(*side.optimizer); }), "the step failed"));
}

// The program goes on with the next batch, without update(). The other run leaves that step out, and ends the iteration by the
// remedy that the header names for errors of the program's own.
TEST_P(GradScalerTraining, AfterAStepThatThrowsGradientsAreUnscaledAnew) {
  for (const auto& make : makers_that_may_throw()) {
    for (const bool unscaled_before : {false, true}) {
      Side thrown[] = {make_side(make), make_side(make, 12)}, left_out[] = {make_side(make), make_side(make, 12)};
      for (auto* sides : {thrown, left_out}) {
        auto scaler = make_scaler();
        for (const auto& batch : data()) {
          const bool fails = &batch == &data()[kBrokenIteration];
          for (auto* side : {&sides[0], &sides[1]}) side->optimizer->zero_grad();
          for (auto* side : {&sides[0], &sides[1]}) scaler.scale(side->loss(batch)).backward();
          if (unscaled_before && fails) {
            for (auto* side : {&sides[0], &sides[1]}) scaler.unscale_(*side->optimizer);
          }
          scaler.step(*sides[0].optimizer);
          if (!fails) {
            scaler.step(*sides[1].optimizer);
            scaler.update();
          } else if (sides == thrown) {
            expect_throwing_step(scaler, sides[1]);
          } else {
            scaler.update(scaler.get_scale());
          }
        }
        EXPECT_EQ(scaler.get_scale(), scale_after(3, 0));
      }
      for (int i : {0, 1}) expect_same(thrown[i], left_out[i], kExact);
    }
  }
}

TEST_P(GradScalerTraining, AStepThatThrewMayBeRepeatedInItsIteration) {
  for (const auto& make : makers_that_may_throw()) {
    auto once = make_side(make), repeated = make_side(make);
    for (auto* side : {&once, &repeated}) {
      auto scaler = make_scaler();
      for (const auto& batch : data()) {
        side->optimizer->zero_grad();
        scaler.scale(side->loss(batch)).backward();
        if (side == &repeated) expect_throwing_step(scaler, *side);
        scaler.step(*side->optimizer);
        scaler.scale(side->loss(batch));  // as for another optimizer: this is no new iteration
        EXPECT_TRUE(contains(message_of([&] { scaler.step(*side->optimizer); }), "already been called"));
        scaler.update();
      }
      EXPECT_EQ(scaler.get_scale(), scale_after(4, 0));
    }
    expect_same(once, repeated, kExact);
  }
}

}  // namespace
}  // namespace apex::test
