// Steps as in a training program: amp and the optimizer classes.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <apex_cpp/amp/initialize.h>
#include <apex_cpp/amp/master_params.h>
#include <apex_cpp/amp/scale_loss.h>
#include <apex_cpp/optimizers/fused_adam.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "step.h"

namespace bench::step {
namespace {

namespace amp = apex::amp;

/// A module with parameters only. Its gradients are set directly instead of by a backward pass.
struct Parameters : torch::nn::Module {
  explicit Parameters(const Tensors& values) {
    for (size_t i = 0; i < values.size(); ++i) register_parameter(std::to_string(i), values[i].clone());
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
};

apex::optimizers::FusedAdamOptions adam_options(bool materialize) {
  return apex::optimizers::FusedAdamOptions(kLr).weight_decay(kDecay).eps(kEps).materialize_master_grads(materialize);
}

/// A model in training.
class Run {
 public:
  Run(const Training& training, const char* level, const apex::optimizers::FusedAdamOptions& adam, bool skip_nonfinite)
      : grads_(training.grads),
        model_(std::make_shared<Parameters>(training.masters)),
        optimizer_(model_->parameters(), adam),
        handles_(amp::initialize(model_, optimizer_, level, options(skip_nonfinite))),
        params_(model_->parameters()),
        loss_(at::ones({}, training.masters.front().options())) {}

  void step() {
    const at::AutoGradMode grad_mode(true);
    auto& optimizer = handles_.second;
    optimizer.zero_grad();
    {
      auto scaled_loss = amp::scale_loss(loss_, optimizer);
      for (size_t i = 0; i < params_.size(); ++i) params_[i].mutable_grad() = grads_[i];
    }
    amp::clip_grad_norm_(optimizer, kMaxNorm);
    optimizer.step();
  }

 private:
  using Model = std::shared_ptr<Parameters>;
  using Optimizer = apex::optimizers::FusedAdam;
  using Handles = decltype(amp::initialize(std::declval<Model&>(), std::declval<Optimizer&>()));

  static amp::InitializeOptions options(bool skip_nonfinite) {
    return amp::InitializeOptions().verbosity(0).loss_scale(1 / kInvScale).skip_nonfinite(skip_nonfinite);
  }

  Tensors grads_;
  Model model_;
  Optimizer optimizer_;
  Handles handles_;
  Tensors params_;
  at::Tensor loss_;
};

}  // namespace

Contender fused_adam(const Training& training, const char* level, bool materialize, bool skip_nonfinite) {
  const at::AutoGradMode grad_mode(true);
  const auto run = std::make_shared<Run>(training, level, adam_options(materialize), skip_nonfinite);
  const std::string name = std::string("FusedAdam") + (materialize ? ", materialised" : "") + (skip_nonfinite ? ", skips" : "");
  return {name, [run] { run->step(); }};
}

Contender fused_adam(const Training& training, apex::optimizers::MasterStorage masters,
                     apex::optimizers::MomentStorage moments) {
  const at::AutoGradMode grad_mode(true);
  const auto options = adam_options(/*materialize=*/false).master_storage(masters).moment_storage(moments);
  const auto run = std::make_shared<Run>(training, "O5", options, /*skip_nonfinite=*/false);
  return {std::string("FusedAdam, ") + name_of(masters) + " " + name_of(moments), [run] { run->step(); }};
}

}  // namespace bench::step
