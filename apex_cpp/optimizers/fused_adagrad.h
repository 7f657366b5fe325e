#pragma once

#include <torch/arg.h>

#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>

namespace apex::optimizers {

/// Options of FusedAdagrad, with Apex's names and defaults. Groups may have their own values, except for set_grad_none and
/// materialize_master_grads, which apply to the whole optimizer.
struct FusedAdagradOptions : FusedOptions<FusedAdagradOptions> {
  /* implicit */ FusedAdagradOptions(double lr = 1e-2) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-2;
  TORCH_ARG(double, eps) = 1e-10;
  TORCH_ARG(double, weight_decay) = 0;
  /// zero_grad() drops gradients instead of zeroing them.
  TORCH_ARG(bool, set_grad_none) = true;
  /// Adds weight decay to the step instead of the gradient.
  TORCH_ARG(bool, adagrad_w_mode) = false;
  /// See amp::StepsMasters.
  TORCH_ARG(bool, materialize_master_grads) = true;

 public:
  static constexpr const char* kNames[] = {
      "lr", "eps", "weight_decay", "set_grad_none", "adagrad_w_mode", "materialize_master_grads"};

  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.lr_, self.eps_, self.weight_decay_, self.set_grad_none_, self.adagrad_w_mode_,
                    self.materialize_master_grads_);
  }
};

struct FusedAdagradParamState : FusedParamState<FusedAdagradParamState> {
  /// The sum of the squares of all gradients so far, of the parameter's shape and dtype.
  at::Tensor sum;

  static constexpr bool kHasDtypeOfParam = true;
  static constexpr const char* kNames[] = {"sum"};
  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.sum);
  }
};

/// Adagrad (Duchi, Hazan and Singer, JMLR 2011).
/// Errors: ValueError for a negative lr, eps or weight_decay. Apex: apex.optimizers.FusedAdagrad.
class FusedAdagrad : public FusedOptimizer {
 public:
  explicit FusedAdagrad(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedAdagradOptions defaults = {});
  explicit FusedAdagrad(std::vector<at::Tensor> params, FusedAdagradOptions defaults = {})
      : FusedAdagrad({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(FusedAdagrad); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

 protected:
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const override;
  void update() override;
};

FusedAdagradOptions options_of(const FusedAdagrad*);

}  // namespace apex::optimizers
