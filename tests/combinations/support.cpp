#include "tests/combinations/support.h"

#include <apex_cpp/optimizers.h>

#include <limits>
#include <sstream>

namespace apex::test::combinations {
namespace {

constexpr int kSteps = 3;
constexpr double kScales[] = {4.0, 16.0, 64.0};

Tensor start_of(int model, bool low) { return torch::arange(1, 4, torch::kFloat) * (low ? 0.5 : -0.25) + model; }

template <class Opt, class Options>
Kind with(const std::string& name, const Options& options) {
  return {name,
          [options](std::vector<Tensor> params) -> OptimizerPtr { return std::make_unique<Opt>(std::move(params), options); }};
}

/// The run with amp.
class Amp {
 public:
  Amp(const Kind& kind, const Plan& plan) : plan_(plan) {
    std::vector<std::vector<Tensor>> params(plan.optimizers);
    for (int m = 0; m < plan.models; ++m) {
      models_.emplace_back();
      models_.back()->low.detach().copy_(start_of(m, true));
      models_.back()->native.detach().copy_(start_of(m, false));
      for (const auto& p : models_.back()->parameters()) params[plan.optimizer_of(m)].push_back(p);
    }
    std::vector<OptimizerPtr> optimizers;
    for (auto& list : params) optimizers.push_back(kind.make(list));
    auto options = quiet().loss_scale("dynamic").num_losses(plan.own_scalers ? plan.losses : 1);
    std::tie(nets_, optimizers_) = amp::initialize(models_, optimizers, plan.level, options);
    for (auto& model : models_) {
      if (has_masters(plan.level)) model->native.set_data(model->native.detach().to(torch::kFloat));
    }
    for (int64_t i = 0; i < amp::num_loss_scalers(); ++i) amp::loss_scaler(i).restore(kScales[i], 0);
  }

  void step(int step) {
    for (int o = 0; o < plan_.optimizers; ++o) zero(o);
    for (int l = 0; l < plan_.losses; ++l) backward(step, l);
    for (auto& optimizer : optimizers_) {
      clip(amp::master_params(*optimizer), plan_.clip);
      optimizer->step();
    }
  }

  static void clip(const std::vector<Tensor>& params, Clip how) {
    if (how == Clip::value) torch::nn::utils::clip_grad_value_(params, 0.25);
    if (how == Clip::norm) torch::nn::utils::clip_grad_norm_(params, 0.5);
  }

  Pair& model(int m) { return models_[m]; }
  torch::optim::Optimizer& optimizer(int o) { return *optimizers_[o]; }

 private:
  void zero(int o) {
    const bool none = plan_.zero == Zero::base || plan_.zero == Zero::model;
    if (plan_.zero == Zero::model || plan_.zero == Zero::model_in_place) {
      for (auto& model : models_) model->zero_grad(none);
    } else {
      optimizers_[o]->zero_grad(none);
    }
  }

  void backward(int step, int l) {
    std::vector<torch::optim::Optimizer*> fed;
    for (int o = 0; o < plan_.optimizers; ++o) {
      if (plan_.delay_unscale || plan_.feeds(l, o)) fed.push_back(optimizers_[o].get());
    }
    Tensor loss = torch::zeros({});
    for (int m = 0; m < plan_.models; ++m) {
      if (plan_.uses(l, m)) loss = loss + nets_[m]->forward(gradient(step, l, m));
    }
    const bool last = l + 1 == plan_.losses;
    auto scaled = amp::scale_loss(loss, fed,
                                  amp::ScaleLossOptions(plan_.own_scalers ? l : 0)
                                      .delay_unscale(plan_.delay_unscale && !last)
                                      .delay_overflow_check(plan_.delay_overflow_check && !last));
    scaled.backward();
    if (plan_.inject && plan_.inject->step == step && plan_.inject->loss == l) {
      auto& model = models_[plan_.inject->model];
      (plan_.inject->into_low ? model->low : model->native).mutable_grad()[1] = std::numeric_limits<float>::infinity();
    }
    scaled.finish();
  }

  Plan plan_;
  std::vector<Pair> models_;
  std::vector<amp::Model<Pair>> nets_;
  std::vector<OptimizerPtr> optimizers_;
};

/// The run by hand.
class ByHand {
 public:
  ByHand(const Kind& kind, const Plan& plan) : plan_(plan) {
    const auto dtype = plan.level == "O3" ? torch::kHalf : torch::kFloat;
    std::vector<std::vector<Tensor>> params(plan.optimizers);
    for (int m = 0; m < plan.models; ++m) {
      for (const bool low : {true, false}) {
        params_.push_back(start_of(m, low).to(dtype).requires_grad_());
        params[plan.optimizer_of(m)].push_back(params_.back());
      }
    }
    for (auto& list : params) optimizers_.push_back(kind.make(list));
    for (int l = 0; l < (plan.own_scalers ? plan.losses : 1); ++l) scales_.push_back(kScales[l]);
  }

  void step(int step) {
    std::vector<bool> skip(plan_.optimizers, false);
    for (auto& param : params_) param.mutable_grad().reset();
    for (int l = 0; l < plan_.losses; ++l) {
      const bool overflow = plan_.inject && plan_.inject->step == step && noticed_in() == l;
      for (int o = 0; o < plan_.optimizers; ++o) skip[o] = skip[o] || (overflow && (plan_.delay_unscale || plan_.feeds(l, o)));
      if (overflow) scales_[plan_.own_scalers ? l : 0] /= 2;
      add_gradients(step, l);
    }
    for (int o = 0; o < plan_.optimizers; ++o) {
      if (skip[o]) continue;
      Amp::clip(optimizers_[o]->param_groups()[0].params(), plan_.clip);
      optimizers_[o]->step();
    }
  }

  const Tensor& param(int model, bool low) const { return params_[2 * model + (low ? 0 : 1)]; }
  const std::vector<double>& scales() const { return scales_; }

 private:
  /// A pass that only adds to scaled gradients is looked at with the last one.
  int noticed_in() const { return plan_.delay_unscale ? plan_.losses - 1 : plan_.inject->loss; }

  void add_gradients(int step, int l) {
    for (int m = 0; m < plan_.models; ++m) {
      if (!plan_.uses(l, m)) continue;
      for (const bool low : {true, false}) {
        const Tensor& p = param(m, low);
        const Tensor g = gradient(step, l, m).to(p.scalar_type());
        p.mutable_grad() = p.grad().defined() ? p.grad() + g : g;
      }
    }
  }

  Plan plan_;
  std::vector<Tensor> params_;
  std::vector<OptimizerPtr> optimizers_;
  std::vector<double> scales_;
};

}  // namespace

PairImpl::PairImpl() {
  low = register_parameter("low", torch::ones({3}));
  native = register_parameter("native", torch::ones({3}));
}

Tensor gradient(int step, int loss, int model) {
  return torch::tensor({0.5, -0.25, 0.125}) * (1 + step) + 0.0625 * (loss - model);
}

Tensor PairImpl::forward(const Tensor& x) { return (low * x.to(low.dtype())).sum() + (native * x.to(native.dtype())).sum(); }

const std::vector<Kind>& kinds() {
  using namespace apex::optimizers;
  const auto sgd = FusedSGDOptions(0.25).momentum(0.125);
  const auto adam = FusedAdamOptions(0.25).eps(0.0625).weight_decay(0.125);
  static const std::vector<Kind> kKinds = {
      with<torch::optim::SGD>("SGD", torch::optim::SGDOptions(0.25).momentum(0.125)),
      with<torch::optim::Adam>("Adam", torch::optim::AdamOptions(0.25).eps(0.0625)),
      with<FusedSGD>("FusedSGD", FusedSGDOptions(sgd).materialize_master_grads(true)),
      with<FusedSGD>("FusedSGDInFusedOrder", FusedSGDOptions(sgd).materialize_master_grads(false)),
      with<FusedAdam>("FusedAdam", FusedAdamOptions(adam).materialize_master_grads(true)),
      with<FusedAdam>("FusedAdamInFusedOrder", FusedAdamOptions(adam).materialize_master_grads(false))};
  return kKinds;
}

bool Plan::uses(int loss, int model) const { return loss == 0 || models == 1 || (loss + model) % 2 == 1; }

bool Plan::feeds(int loss, int optimizer) const {
  for (int m = 0; m < models; ++m) {
    if (uses(loss, m) && optimizer_of(m) == optimizer) return true;
  }
  return false;
}

std::string Plan::describe() const {
  std::ostringstream text;
  text << level << ", " << models << " models, " << losses << " losses, " << optimizers << " optimizers, "
       << (own_scalers ? "a scaler for each loss" : "one scaler") << ", zeroing " << static_cast<int>(zero) << ", clipping "
       << static_cast<int>(clip) << (delay_unscale ? ", delay_unscale" : "")
       << (delay_overflow_check ? ", delay_overflow_check" : "");
  if (inject) {
    text << ", inf in step " << inject->step << ", loss " << inject->loss << ", model " << inject->model
         << (inject->into_low ? ", low" : ", native");
  }
  return text.str();
}

void expect_trains_as_by_hand(const Kind& kind, const Plan& plan) {
  SCOPED_TRACE(kind.name + " at " + plan.describe());
  amp::reset();
  Amp with_amp(kind, plan);
  ByHand by_hand(kind, plan);
  for (int step = 0; step < kSteps; ++step) {
    with_amp.step(step);
    by_hand.step(step);
  }
  std::vector<size_t> position(plan.optimizers, 0);
  for (int m = 0; m < plan.models; ++m) {
    const auto masters = amp::master_params(with_amp.optimizer(plan.optimizer_of(m)));
    for (const bool low : {true, false}) {
      const Tensor& model_param = low ? with_amp.model(m)->low : with_amp.model(m)->native;
      const Tensor& expected = by_hand.param(m, low);
      EXPECT_EQ(bytes_of(masters[position[plan.optimizer_of(m)]++]), bytes_of(expected)) << "model " << m;
      EXPECT_EQ(bytes_of(model_param), bytes_of(expected.detach().to(model_param.scalar_type()))) << "model " << m;
    }
  }
  for (size_t i = 0; i < by_hand.scales().size(); ++i) {
    EXPECT_EQ(amp::loss_scaler(static_cast<int64_t>(i)).loss_scale(), by_hand.scales()[i]) << "scaler " << i;
  }
}

}  // namespace apex::test::combinations
