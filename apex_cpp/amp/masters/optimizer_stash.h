#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <apex_cpp/amp/masters/delayed_grads.h>
#include <apex_cpp/amp/masters/fused_order.h>
#include <apex_cpp/amp/masters/step_result.h>
#include <apex_cpp/amp/optimizer_classes/left_behind.h>
#include <apex_cpp/amp/optimizer_classes/steps_masters.h>
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/session.h>

namespace apex::amp::detail {

/// What amp keeps beside one optimizer (Apex's stash): which parameters have masters, the gradients put aside while a backward
/// pass runs, and whether the next step is to be skipped. Owned by the optimizer's handle and shared with open guards.
///
/// "Model params" below are the 16-bit parameters that have a master; "native" ones are FP32 and are updated directly. Without
/// master weights all parameters are native. Every method takes tensors as they are on their devices; none synchronises but
/// `first_nonfinite` and, for gradients written from outside, `drop_zeroed_masters`.
class OptimizerStash : public KeepsMasters {
 public:
  OptimizerStash(std::shared_ptr<Session> session, std::shared_ptr<LeftBehind> left_behind);

  Session& session() { return *session_; }
  LeftBehind& left_behind() { return *left_behind_; }
  torch::optim::Optimizer* handle() { return left_behind_->handle; }

  /// Sorts parameters that are new since the last call, or no longer frozen, and gives 16-bit ones their FP32 master in the
  /// handle's groups (MW-01..07, APG-02). Frozen parameters stay as they are. Errors, before anything is changed: TypeError for
  /// a parameter to be trained that is neither 16-bit nor FP32, RuntimeError for one whose master another optimizer keeps.
  void adopt_new_params();
  /// Errors: as `adopt_new_params` would, plus RuntimeError for a parameter that the optimizer has already.
  void check_new_group(const std::vector<at::Tensor>& params) const;
  at::Tensor master_of(const at::Tensor& param) const override;
  /// In the order of the handle's groups, each once; model_params() are the params behind them, in the same order.
  std::vector<at::Tensor> masters() const;
  std::vector<at::Tensor> model_params() const;
  /// Errors: RuntimeError unless there is one saved value for each master, of its shape.
  void check_masters_fit(const std::vector<at::Tensor>& values) const;
  /// Writes saved values that fit into the masters, in order.
  void load_masters(const std::vector<at::Tensor>& values);
  /// Errors: RuntimeError naming a parameter that is both here and in `other`, of the same block.
  void check_disjoint(const OptimizerStash& other) const;

  // Around one backward pass (BWD-*), called by ScaledLoss.
  /// Puts native gradients aside and drops what was already unscaled into masters, so that the pass starts from nothing.
  void enter_backward();
  /// Errors: RuntimeError naming a parameter whose gradient is sparse. To be called before either exit.
  void check_grads_dense() const;
  void exit_backward(LossScaler& scaler);
  /// `scale` is that of the pass.
  void exit_backward_delayed(double scale);
  /// The pass was abandoned (an exception): the gradients of before it come back, those of the pass are dropped.
  void abandon_backward();
  bool inside_backward() const { return inside_backward_; }

  // Around one step (OPT-05, SL-11, SL-12), called by the handle.
  /// The first gradient of this optimizer that is not finite, if there is one. Synchronises.
  NonfiniteGrad first_nonfinite() const;
  /// The first overflow before a step is the one that its skip is told with. `overflow` names a gradient of the block; one of
  /// this optimizer takes its place.
  void skip_next_step(Overflow overflow);
  /// Returns false if the step is to be skipped. Errors: RuntimeError for a closure where masters exist, a step inside a
  /// scale_loss block or after passes with delay_unscale only, a moved-from handle, or the original optimizer used in between.
  bool begin_step(bool has_closure);
  void finish_step();

  // Gradients as the optimizer will step them.
  /// Unscales gradients that wait in the model (the fused order) into the masters, where they can be read and edited. Does
  /// nothing in Apex's order, nor before the last of several passes with `delay_unscale`. No synchronisation.
  void materialize_grads();
  /// Scales all gradients so that their L2 norm is at most `max_norm`, and returns the norm from before, one synchronisation. A
  /// norm that is not finite leaves them alone.
  double clip_grad_norm(double max_norm);

  /// OPT-06: gradients of model params and native params are zeroed or dropped, masters' gradients dropped.
  void zero_grad(bool set_to_none);
  /// What passes have put aside, or have left scaled for a later one, is not to come back.
  void forget_passes();

  /// An error that a destructor could not throw is kept here and thrown by the next call that can.
  void keep_error(std::exception_ptr error) { kept_error_ = std::move(error); }
  void throw_kept_error();
  /// Errors: RuntimeError if the original optimizer was used, the parameters are no longer with the handle, or a later
  /// `initialize` took over.
  void check_in_use();
  void retire() override { retired_ = true; }
  /// Errors: RuntimeError naming `caller` and the remedy if gradients are still scaled, after passes with delay_unscale.
  void check_unscaled(const char* caller) const;

  StepResult result;

 private:
  void check_can_adopt(const at::Tensor& param) const;
  bool is_frozen(const at::Tensor& param) const;
  struct Place {
    size_t group, position;
  };
  std::vector<Place> new_params();
  void adopt(at::Tensor& param, bool first_time);
  void give_master(at::Tensor& param);
  /// In `masters_`, by master.
  std::unordered_map<const at::TensorImpl*, size_t> positions_of_masters() const;
  std::vector<size_t> masters_by_group() const;
  std::vector<at::Tensor> trained_params() const;
  void drop_zeroed_masters();
  void remember_model_grads();
  void drop_master_grads();
  static bool is_spare(const at::Tensor& grad, const at::Tensor& master);
  /// Memory for the gradient of master i, with any values in it.
  at::Tensor new_master_grad(size_t i);
  void end_step();
  void unscale_into_masters(LossScaler& scaler);
  void unscale_native(LossScaler& scaler);
  void copy_masters_to_model();
  bool in_fused_order() const;
  StepsMasters* fused() const;
  void describe_copies();
  std::vector<at::Tensor> grads_of_groups();
  void skip_step();

  /// What a gradient was when amp last looked: a different one shows that a zero_grad which amp cannot see ran since.
  struct GradMark {
    bool defined = false;
    int64_t version = 0;
    static GradMark of(const at::Tensor& grad);
    bool still(const at::Tensor& grad) const;
  };

  std::shared_ptr<Session> session_;
  std::shared_ptr<LeftBehind> left_behind_;

  bool adopted_once_ = false;
  std::vector<std::vector<bool>> adopted_;  // by group and position: sorted already; frozen ones are not
  std::vector<at::Tensor> model_params_, masters_;
  std::vector<GradMark> model_grad_marks_;
  std::vector<at::Tensor> spare_grads_;  // memory of dropped master gradients that nobody else holds
  std::vector<at::Tensor> native_params_, native_stash_;
  std::unordered_map<const at::TensorImpl*, size_t> master_index_;
  std::unordered_set<const at::TensorImpl*> adopted_impls_;

  FusedOrder fused_order_;
  DelayedGrads delayed_;
  bool materialized_ = false;  // the gradients of this step were asked for, so it goes on in Apex's order

  bool inside_backward_ = false;
  std::optional<Overflow> overflow_;  // the next step is to be skipped on its account
  bool retired_ = false;
  std::exception_ptr kept_error_;
};

}  // namespace apex::amp::detail
