// Calls between passes with delay_unscale (SL-07, SL-09): no gradient is lost, used twice or given to another parameter.
#include <apex_cpp/optimizers.h>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

/// A model with two parameters, and one FP32 parameter outside it. Their gradients are the factors that `pass` takes.
struct TwoImpl : torch::nn::Module {
  TwoImpl() {
    a = register_parameter("a", torch::ones({2}));
    b = register_parameter("b", torch::ones({2}));
  }
  Tensor forward(Tensor x) { return (a * x).sum() + (b * x).sum(); }
  Tensor a, b;
};
TORCH_MODULE(Two);

class DelayedPasses : public AmpTest {
 protected:
  static amp::ScaleLossOptions delayed() { return amp::ScaleLossOptions().delay_unscale(true); }

  template <class Opt>
  void pass(Opt& opt, float factor, const amp::ScaleLossOptions& options = {}) {
    amp::scale_loss((native_ * factor).sum() + (model_->a.to(torch::kFloat) * factor).sum(), opt, options).backward();
  }
  optimizers::FusedSGD fused_order() {
    const std::vector<Tensor> params{model_->a, native_};
    return optimizers::FusedSGD(params, optimizers::FusedSGDOptions(1.0).materialize_master_grads(false));
  }
  static amp::InitializeOptions at_scale(double scale) { return quiet().loss_scale(scale); }

  Two model_;
  Tensor native_ = torch::zeros({2}).requires_grad_();
};

TEST_F(DelayedPasses, ZeroGradWithoutMastersDropsTheGradientsOfDelayedPasses) {
  for (const char* level : {"O0", "O1", "O3"}) {
    Two model;
    torch::optim::SGD optimizer(model->parameters(), 1.0);
    auto [net, opt] = amp::initialize(model, optimizer, level, at_scale(4.0));
    const auto gradient_of = [&, &opt = opt](float factor, const amp::ScaleLossOptions& options) {
      amp::scale_loss((model->a.to(torch::kFloat) * factor).sum(), opt, options).backward();
    };
    gradient_of(1.0, {});
    gradient_of(2.0, delayed());
    opt.zero_grad();
    gradient_of(3.0, {});
    EXPECT_EQ(model->a.grad()[0].item<float>(), 3.0f) << level;
  }
}

// In the last block the gradients are the sums over all passes, so that they can be clipped or averaged over processes, also
// after the scale has changed. An exception in a block removes that block's gradients.
TEST_F(DelayedPasses, Sl09TheLastBlockHoldsTheSumsAfterItsBackward) {
  for (const char* level : {"O0", "O1", "O2", "O3", "O5", "O6"}) {
    for (const double last_scale : {4.0, 8.0}) {
      Two model;
      torch::optim::SGD optimizer(model->parameters(), 1.0);
      auto [net, opt] = amp::initialize(model, optimizer, level, at_scale(4.0));
      const auto loss = [&](float factor) { return (model->a.to(torch::kFloat) * factor).sum(); };
      { amp::scale_loss(loss(1.0), opt, delayed()).backward(); }
      { amp::scale_loss((model->b.to(torch::kFloat) * 5).sum(), opt, delayed()).backward(); }
      amp::loss_scaler(0).restore(last_scale, 0);
      try {
        auto scaled_loss = amp::scale_loss(loss(7.0), opt);
        scaled_loss.backward();
        throw 1;
      } catch (int) {
      }
      {
        auto scaled_loss = amp::scale_loss(loss(2.0), opt);
        scaled_loss.backward();
        EXPECT_EQ(model->a.grad()[0].item<float>(), 3 * last_scale) << level;
        EXPECT_EQ(model->b.grad()[0].item<float>(), 5 * last_scale) << level;
        const torch::NoGradGuard no_grad;
        for (const Tensor& param : model->parameters()) param.grad().mul_(0.5);
      }
      const auto stepped = amp::master_params(opt);
      EXPECT_EQ(stepped[0].grad()[0].item<float>(), 1.5f) << level;
      EXPECT_EQ(stepped[1].grad()[0].item<float>(), 2.5f) << level;
    }
  }
}

TEST_F(DelayedPasses, Bwd03MasterParamsBetweenPassesLosesNoGradientOfFusedUnscale) {
  auto optimizer = fused_order();
  auto [net, opt] = amp::initialize(model_, optimizer, "O2", at_scale(4.0));
  pass(opt, 1.0);
  pass(opt, 2.0, delayed());
  EXPECT_FALSE(amp::master_params(opt)[0].grad().defined()) << "the gradients are scaled, and not all of them are there";
  pass(opt, 3.0);
  const auto masters = amp::master_params(opt);
  EXPECT_EQ(masters[0].grad()[0].item<float>(), 6.0f);
  EXPECT_EQ(masters[1].grad()[0].item<float>(), 6.0f);
}

TEST_F(DelayedPasses, Apg03AddingAGroupBetweenPassesKeepsEveryGradientOfFusedUnscale) {
  auto optimizer = fused_order();
  auto [net, opt] = amp::initialize(model_, optimizer, "O2", at_scale(4.0));
  pass(opt, 1.0);
  pass(opt, 2.0, delayed());
  opt.add_param_group(torch::optim::OptimizerParamGroup({model_->b}));
  pass(opt, 3.0);
  const auto params = amp::master_params(opt);
  EXPECT_EQ(params[0].grad()[0].item<float>(), 6.0f);
  EXPECT_EQ(params[1].grad()[0].item<float>(), 6.0f) << "the parameter that has no master";
  EXPECT_FALSE(params[2].grad().defined()) << "the new one";
}

TEST_F(DelayedPasses, AStepBetweenPassesIsAnErrorAndChangesNothing) {
  auto optimizer = fused_order();
  auto [net, opt] = amp::initialize(model_, optimizer, "O2", at_scale(4.0));
  pass(opt, 1.0);
  (void)amp::master_params(opt);  // materialized unscale until the step
  pass(opt, 2.0, delayed());
  EXPECT_TRUE(contains(message_of([&opt = opt] { opt.step(); }), "still carries the loss scale"));
  pass(opt, 3.0);
  EXPECT_EQ(native_.grad()[0].item<float>(), 6.0f) << "unscaled, with what the first of them put aside";
}

}  // namespace
}  // namespace apex::test
