#pragma once

#include <torch/arg.h>

#include <apex_cpp/optimizers/fused_optimizer.h>
#include <apex_cpp/optimizers/options.h>

#include <string>
#include <tuple>

namespace apex::optimizers {

/// Options of Muon, with the names and defaults of torch.optim.Muon. Groups may have their own values, except for set_grad_none
/// and materialize_master_grads, which apply to the whole optimizer.
struct MuonOptions : FusedOptions<MuonOptions> {
  using Coefficients = std::tuple<double, double, double>;

  /* implicit */ MuonOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  /// Multiplies the parameter by 1 - lr * weight_decay before the step.
  TORCH_ARG(double, weight_decay) = 0.1;
  /// The share of the running mean of the gradients that a step keeps.
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  /// a, b and c: an iteration replaces a matrix X by a * X + b * X X^T X + c * (X X^T)^2 X.
  TORCH_ARG(Coefficients, ns_coefficients) = Coefficients(3.4445, -4.7750, 2.0315);
  /// The smallest norm by which a matrix is divided.
  TORCH_ARG(double, eps) = 1e-7;
  /// The number of iterations, from 0 to 99.
  TORCH_ARG(int64_t, ns_steps) = 5;
  /// What multiplies lr for a matrix of A rows and B columns: "original" sqrt(max(1, A / B)), "match_rms_adamw"
  /// 0.2 * sqrt(max(A, B)), with which the lr and weight_decay of AdamW can be kept. Python's None is "original".
  TORCH_ARG(std::string, adjust_lr_fn) = "original";
  /// zero_grad() drops gradients instead of zeroing them.
  TORCH_ARG(bool, set_grad_none) = true;
  /// See amp::StepsMasters.
  TORCH_ARG(bool, materialize_master_grads) = true;

 public:
  static constexpr const char* kNames[] = {"lr",  "weight_decay", "momentum",     "nesterov",      "ns_coefficients",
                                           "eps", "ns_steps",     "adjust_lr_fn", "set_grad_none", "materialize_master_grads"};

  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.lr_, self.weight_decay_, self.momentum_, self.nesterov_, self.ns_coefficients_, self.eps_,
                    self.ns_steps_, self.adjust_lr_fn_, self.set_grad_none_, self.materialize_master_grads_);
  }
};

struct MuonParamState : FusedParamState<MuonParamState> {
  /// The running mean of the gradients, of the parameter's shape and dtype.
  at::Tensor momentum_buffer;

  static constexpr bool kHasDtypeOfParam = true;
  static constexpr const char* kNames[] = {"momentum_buffer"};
  template <class Self>
  static auto members_of(Self& self) {
    return std::tie(self.momentum_buffer);
  }
};

/// Muon: a step is the running mean of a matrix's gradients, of which Newton-Schulz iterations in bfloat16 have brought all
/// singular values near 1 (Jordan et al., kellerjordan.github.io/posts/muon). Without amp, float32 parameters get the bits of
/// torch.optim.Muon of torch 2.11 on the same device; with masters, the masters get them. On a CPU without bfloat16
/// instructions amp computes the products of the iterations in float32 (cpu_16bit), with other bits.
///
/// For the matrices of hidden layers. Give biases, norm layers, embeddings and the last layer to another optimizer, and both to
/// amp::initialize: `auto [net, opts] = amp::initialize(model, std::tie(muon, adam), "O5")`.
///
/// Not one pass over memory, as the fused optimizers: ATen's operators update one matrix after the other, and need memory for
/// its update and for the matrices of an iteration. If it runs out, earlier parameters have made the step. With
/// `amp::GradScaler` on a GPU the host waits for found_inf.
///
/// Errors: ValueError for a parameter that is not 2-D, for a negative lr, weight_decay, momentum or eps, for ns_steps outside
/// [0, 100), for another adjust_lr_fn, and for a master_storage other than float32. In `step`, before anything is changed,
/// ValueError for a parameter that is no longer 2-D.
/// PyTorch: torch.optim.Muon. Before 2.15, and without nesterov, it normalizes the buffer of a bfloat16 parameter in place;
/// this class does not.
class Muon : public FusedOptimizer {
 public:
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups, MuonOptions defaults = {});
  explicit Muon(std::vector<at::Tensor> params, MuonOptions defaults = {})
      : Muon({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  /// Errors: as FusedOptimizer's, and ValueError for a parameter that is not 2-D.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(Muon); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

 protected:
  void check_group(size_t group) const override;
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const detail::SteppedParam& param) const override;
  void update() override;
};

MuonOptions options_of(const Muon*);

}  // namespace apex::optimizers
