// Gradients that share memory: autograd gives both sides of a sum of views one buffer. In-place work on gradients must change
// it once. Results are compared bit for bit with a program whose gradients are copies.
#include <apex_cpp/contrib.h>
#include <apex_cpp/fp16_utils.h>
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>

#include <functional>

#include "tests/amp/every_level.h"
#include "tests/amp/optimizers.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using torch::Tensor;

/// A weight that is the sum of two parameters' views.
struct SummedImpl : torch::nn::Module {
  SummedImpl() {
    flat = register_parameter("flat", torch::randn({18}));
    wide = register_parameter("wide", torch::randn({3, 6}));
    bias = register_parameter("bias", torch::randn({3}));
  }
  Tensor forward(const Tensor& x) { return torch::linear(x, flat.view({3, 6}) + wide.view({3, 6}), bias); }
  void copy_gradients() {
    for (auto& param : parameters()) param.register_hook([](const Tensor& grad) { return grad.clone(); });
  }
  Tensor flat, wide, bias;
};
TORCH_MODULE(Summed);

Summed same_summed() {
  torch::manual_seed(5);
  return Summed();
}

/// Runs `run` with and without copied gradients and expects the same result.
void expect_same(const std::function<std::string(bool copies)>& run) {
  const auto want = run(true);
  EXPECT_EQ(run(false), want);
}

class SharedGrads : public AtEveryLevel {
 protected:
  /// Low enough that no gradient overflows.
  static amp::InitializeOptions options(const char* scale) { return quiet().loss_scale(scale).max_loss_scale(128.0); }
  /// Three steps with each kind of loss scale; `passes` makes the gradients of one step.
  template <class Optimizer, class Passes>
  void expect_trained_as_with_copies(const Optimizer& make_optimizer, const Passes& passes) {
    for (const char* scale : {"1", "dynamic"}) {
      expect_same([&](bool copies) {
        amp::reset();
        Summed model = same_summed();
        auto optimizer = make_optimizer(*model);
        auto [net, opt] = amp::initialize(model, optimizer, level(), options(scale));
        if (copies) model->copy_gradients();
        for (int i = 0; i < 3; ++i) {
          opt.zero_grad();
          passes(net, opt);
          opt.step();
          EXPECT_FALSE(amp::step_result(opt).skipped);
        }
        return bytes_of(*model) + bytes_of(opt);
      });
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, SharedGrads, kEveryLevel);

const auto one_pass = [](auto& net, auto& opt) {
  amp::scale_loss(net->forward(features()).to(torch::kFloat).square().mean(), opt).backward();
};

torch::optim::SGD sgd_over(const torch::nn::Module& model) {
  return torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
}

TEST(SharedGradsOfTorch, AutogradMakesThemForASumOfViews) {
  Summed model = same_summed();
  model->forward(features()).sum().backward();
  EXPECT_TRUE(model->flat.grad().is_alias_of(model->wide.grad()));
  model->zero_grad();
  model->copy_gradients();
  model->forward(features()).sum().backward();
  EXPECT_FALSE(model->flat.grad().is_alias_of(model->wide.grad()));
}

TEST_P(SharedGrads, AreUnscaledOnce) { expect_trained_as_with_copies(sgd_over, one_pass); }

TEST_P(SharedGrads, AreUnscaledOnceByFusedUnscale) {
  const auto fused = [](const torch::nn::Module& model) {
    return optimizers::FusedSGD(model.parameters(), optimizers::FusedSGDOptions(0.1).materialize_master_grads(false));
  };
  expect_trained_as_with_copies(fused, one_pass);
  expect_trained_as_with_copies(fused, [](auto& net, auto& opt) {
    one_pass(net, opt);
    amp::master_params(opt);  // unscales them
  });
}

TEST_P(SharedGrads, AccumulateOverPasses) {
  expect_trained_as_with_copies(sgd_over, [](auto& net, auto& opt) {
    one_pass(net, opt);
    one_pass(net, opt);
  });
  expect_trained_as_with_copies(sgd_over, [](auto& net, auto& opt) {
    const auto loss = [&] { return net->forward(features()).to(torch::kFloat).square().mean(); };
    amp::scale_loss(loss(), opt, amp::ScaleLossOptions().delay_unscale(true)).backward();
    auto scaled_loss = amp::scale_loss(loss(), opt);
    scaled_loss.backward();
    (loss() * amp::loss_scaler().loss_scale()).backward();
  });
}

TEST_P(SharedGrads, BetweenTwoOptimizersAreUnscaledOnce) {
  expect_same([&](bool copies) {
    amp::reset();
    Summed model = same_summed();
    torch::optim::SGD a({model->flat, model->bias}, 0.1), b({model->wide}, 0.1);
    auto [net, opts] = amp::initialize(model, std::tie(a, b), level(), options("dynamic"));
    auto& [opt_a, opt_b] = opts;
    if (copies) model->copy_gradients();
    for (int i = 0; i < 2; ++i) {
      model->zero_grad();
      { amp::scale_loss(net->forward(features()).to(torch::kFloat).square().mean(), {opt_a, opt_b}).backward(); }
      opt_a.step();
      opt_b.step();
    }
    return bytes_of(*model);
  });
}

TEST_P(SharedGrads, AreClippedOnce) {
  for (const char* scale : {"1", "dynamic"}) {
    expect_same([&](bool copies) {
      amp::reset();
      Summed model = same_summed();
      auto optimizer = sgd_over(*model);
      auto [net, opt] = amp::initialize(model, optimizer, level(), options(scale));
      if (copies) model->copy_gradients();
      one_pass(net, opt);
      const double norm = amp::clip_grad_norm_(opt, 0.125);
      EXPECT_GT(norm, 0.25) << "there is something to clip";
      opt.step();
      return bytes_of(*model) + std::to_string(norm);
    });
  }
}

TEST_P(SharedGrads, AreScaledOnceByLarc) {
  expect_trained_as_with_copies(
      [](const torch::nn::Module& model) {
        auto sgd = sgd_over(model);
        return parallel::LARC(sgd);
      },
      one_pass);
}

TEST_P(SharedGrads, AreSteppedOnceByFusedOptimizers) {
  using torch::nn::Module;
  const auto lamb = [](const Module& model) {
    return optimizers::FusedLAMB(model.parameters(), optimizers::FusedLAMBOptions(0.01).eps(kEps));
  };
  const auto novograd = [](const Module& model) {
    return optimizers::FusedNovoGrad(model.parameters(), optimizers::FusedNovoGradOptions(0.01).eps(kEps));
  };
  const auto adam = [](const Module& model) {
    return optimizers::FusedAdam(model.parameters(), optimizers::FusedAdamOptions(0.01).eps(kEps));
  };
  expect_trained_as_with_copies(lamb, one_pass);
  expect_trained_as_with_copies(novograd, one_pass);
  expect_trained_as_with_copies(adam, one_pass);
}

TEST(SharedGradsWithoutAmp, AreClippedOnceByContrib) {
  for (const double order : {2.0, 1.0, double{INFINITY}}) {
    expect_same([&](bool copies) {
      Summed model = same_summed();
      if (copies) model->copy_gradients();
      model->forward(features()).square().mean().backward();
      const Tensor norm = contrib::clip_grad_norm_(model->parameters(), 0.125, order);
      return bytes_of(model->flat.grad()) + bytes_of(model->wide.grad()) + bytes_of(norm);
    });
  }
}

TEST(SharedGradsWithoutAmp, AreUnscaledOnceByAGradScaler) {
  expect_same([](bool copies) {
    Summed model = same_summed();
    if (copies) model->copy_gradients();
    auto optimizer = sgd_over(*model);
    amp::GradScaler scaler("cpu");
    scaler.scale(model->forward(features()).square().mean()).backward();
    scaler.step(optimizer);
    scaler.update();
    return bytes_of(*model);
  });
}

TEST(SharedGradsWithoutAmp, AreUnscaledOnceByAnFp16Optimizer) {
  expect_same([](bool copies) {
    const CaughtWarnings deprecated;
    Summed model = same_summed();
    if (copies) model->copy_gradients();
    auto sgd = sgd_over(*model);
    fp16_utils::FP16_Optimizer optimizer(sgd, fp16_utils::FP16_OptimizerOptions().static_loss_scale(64).verbose(false));
    optimizer.backward(model->forward(features()).square().mean());
    optimizer.step();
    return bytes_of(*model);
  });
}

TEST(SharedGradsWithoutAmp, OfOneElementAreClippedOnce) {
  expect_same([](bool copies) {
    Tensor a = torch::zeros({1}).requires_grad_(), b = torch::zeros({1}).requires_grad_();
    a.mutable_grad() = torch::full({1}, 3.0);
    b.mutable_grad() = copies ? a.grad().clone() : a.grad();
    const Tensor norm = contrib::clip_grad_norm_({a, b}, 0.125);
    return bytes_of(a.grad()) + bytes_of(b.grad()) + bytes_of(norm);
  });
}

/// Gradients side by side in one buffer stay there. Of those that overlap, even in one element, all but the first are copied.
TEST(SharedGradsWithoutAmp, OnlyOverlappingOnesAreCopied) {
  for (const int64_t begin : {4, 3}) {
    const Tensor buffer = torch::full({8}, 3.0);
    const auto zeros = [](at::IntArrayRef shape) { return torch::zeros(shape).requires_grad_(); };
    const Tensor a = zeros({2, 2}), b = zeros({4}), c = zeros({4});
    a.mutable_grad() = buffer.slice(0, 0, 4).view({2, 2});
    for (const Tensor& param : {b, c}) param.mutable_grad() = buffer.slice(0, begin, begin + 4);
    contrib::clip_grad_norm_({a, b, c}, 1.0);
    EXPECT_TRUE(a.grad().is_alias_of(buffer));
    EXPECT_EQ(b.grad().is_alias_of(buffer), begin == 4);
    EXPECT_FALSE(c.grad().is_alias_of(buffer));
    EXPECT_LT(a.grad()[0][0].item<float>(), 1.0f);
    for (const Tensor& param : {b, c}) EXPECT_TRUE(param.grad().equal(a.grad().flatten())) << "each is scaled once";
  }
}

/// A gradient that the program also holds is changed in place, unless another gradient shares its memory.
TEST(SharedGradsWithoutAmp, AHeldGradientIsNotCopied) {
  Summed model = same_summed();
  model->copy_gradients();
  model->forward(features()).square().mean().backward();
  const Tensor held = model->flat.grad(), view = model->wide.grad().view({-1}), before = held.clone();
  contrib::clip_grad_norm_(model->parameters(), 0.125);
  EXPECT_TRUE(model->flat.grad().is_same(held));
  EXPECT_TRUE(model->wide.grad().is_alias_of(view));
  EXPECT_FALSE(torch::equal(held, before));
}

}  // namespace
}  // namespace apex::test
