#pragma once

#include <apex_cpp/amp/masters/grad_passes.h>
#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/amp/masters/step_gate.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/amp/session/amp_session.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace apex::amp::detail {

class OverlappingGrads;

/// What amp keeps beside one optimizer (Apex's stash), put together of its parts: the table of its parameters, the way of their
/// gradients from backward passes to a step, and the gate before the step. Owned by the optimizer's handle and shared with open
/// guards.
///
/// Every method takes tensors as they are on their devices; none synchronises but `first_nonfinite`, `clip_grad_norm`, for
/// gradients written from outside `enter_backward` and `begin_step`, and as `CustomOptimizerCheck` says `finish_step`.
class OptimizerStash : public MasterProvider {
 public:
  /// `is_own_class`: the optimizer's class is the program's own, as `kIsCustomOptimizer` says.
  OptimizerStash(std::shared_ptr<Session> session, std::shared_ptr<OriginalOptimizer> original_optimizer, bool is_own_class);

  Session& session() const { return *session_; }
  OriginalOptimizer& original_optimizer() { return *original_optimizer_; }
  torch::optim::Optimizer* handle() const { return original_optimizer_->handle; }

  // Parameters and masters.
  /// As `MasterWeightInit` says, and forgets parameters that programs have taken out of the groups of this session's
  /// optimizers; nothing where amp is disabled. While groups hold what they held, it costs a comparison of addresses.
  /// `once_trained`: get masters although they may be frozen now, as a file has values for them.
  void adopt_new_params(const std::vector<at::Tensor>& once_trained = {});
  void check_new_group(const std::vector<at::Tensor>& params) const { master_init_.check_new_group(params); }
  /// Gradients that these have now come from before amp had them to train: they are left where they are.
  void set_aside_grads_of(const std::vector<at::Tensor>& params);
  at::Tensor master_of(const at::Tensor& param) const override;
  /// Brings weights that the program wrote into the model since the last step to the masters, which the next step would
  /// overwrite them with. Seen by version and memory, and on a CPU by a sample of values, after which all are
  /// compared; what leaves no trace is found after `weights_were_written`. No synchronisation. `can_be_put_back`: as
  /// `TrainedParam::take_written_values` says, for all that were, or may have been, written to.
  void take_written_weights(bool can_be_put_back = true) const;
  /// Frees the values of before of masters that a load has written to since, so that they cannot come back.
  void forget_overwritten_masters() const;
  void weights_were_written() override;
  /// In the order of the handle's groups, each once; model_params() are the params behind them, in the same order.
  std::vector<at::Tensor> masters() const;
  std::vector<at::Tensor> model_params() const;
  /// Where each of `masters` stands among the parameters of all groups, counted once each.
  std::vector<int64_t> master_positions() const;
  /// Of values that were saved with these positions, those of `masters`: none for a parameter that was frozen then. One that
  /// is frozen now gets its master.
  std::vector<at::Tensor> masters_from(const std::vector<at::Tensor>& values, const std::vector<int64_t>& positions);
  /// Errors: RuntimeError unless there is a place for a value of each master, and the values that there are have its shape.
  void check_masters_fit(const std::vector<at::Tensor>& values) const;
  /// Writes saved values that fit into the masters, in order.
  void load_masters(const std::vector<at::Tensor>& values);
  /// Errors: RuntimeError naming a parameter that is both here and in `other`, of the same block.
  void check_disjoint(const OptimizerStash& other) const;

  // Around one backward pass (BWD-*), called by ScaledLoss.
  /// Errors: RuntimeError for a gradient of a block that was not given this optimizer, where the pass would add to it: masters
  /// start from nothing anyway. To be called before `enter_backward`.
  void check_may_enter() const;
  /// The pass is made at `scaler`'s scale. `delayed`: it is to end with `exit_backward_delayed`.
  void enter_backward(const LossScaler& scaler, bool delayed);
  /// Whether any parameter has a gradient in the model.
  bool has_grads() const;
  /// Whether gradients have been left unreduced on this rank (DistributedDataParallel's no_sync), so that they are to stay as
  /// they are until a pass that reduces them.
  bool waits_for_other_ranks() const { return unreduced_param().defined(); }
  /// Errors: RuntimeError naming a parameter whose gradient is sparse. To be called before either exit.
  void check_grads_dense() const;
  /// Adds the model's parameters, whose gradients amp and autograd work on in place.
  void add_params_to(OverlappingGrads& grads) const;
  /// `backward` has run in the block.
  void join_delayed_passes(const LossScaler& scaler) { passes_.join(scaler); }
  void exit_backward(LossScaler& scaler) { passes_.exit(scaler); }
  void exit_backward_delayed(LossScaler& scaler) { passes_.exit_delayed(scaler); }
  /// The pass was abandoned (an exception): the gradients of before it come back, those of the pass are dropped. If it had
  /// ended already, what was put aside is mixed with the pass's gradients, and all are dropped.
  void abandon_backward();
  bool inside_backward() const { return passes_.inside(); }

  // Around a block of other optimizers of the session.
  void begin_others_block();
  /// `is_taken`: as `UnclaimedGrads::end_block` says.
  void end_others_block(const std::function<bool(const at::Tensor&)>& is_taken);
  /// Whether a block of this optimizer takes the gradient of `param`.
  bool takes_grad_of(const at::Tensor& param) const { return table_.find(param) != nullptr; }

  // Gradients as the optimizer will step them.
  /// Unscales gradients that wait in the model (the fused order) into the masters, where they can be read and edited. Does
  /// nothing before the last of several passes with `delay_unscale`. In Apex's order what the program has dropped or zeroed in
  /// the model goes from the masters, too. Synchronises only where gradients were written from outside.
  void materialize_grads() { passes_.materialize(); }
  /// Scales all gradients so that their L2 norm is at most `max_norm`, and returns the norm from before, one synchronisation. A
  /// norm that is not finite leaves them alone.
  double clip_grad_norm(double max_norm);
  /// The first gradient of this optimizer that is not finite, if there is one. Synchronises.
  NonfiniteGrad first_nonfinite() const;
  /// Of a sharded optimizer, and collective: the ranks that have found an overflow. Of another: none.
  std::vector<int> ranks_with_overflow(bool found_here) const;
  /// Errors: RuntimeError if masters are spread over processes.
  void check_masters_are_here(const char* caller) const;
  /// Errors: RuntimeError naming `caller` and the remedy if gradients are still scaled, after passes with delay_unscale, or
  /// are those of this rank alone, after passes within no_sync.
  void check_unscaled(const char* caller) const;
  /// OPT-06: gradients of model params and native params are zeroed or dropped, masters' gradients dropped.
  void zero_grad(bool set_to_none);
  /// What passes have put aside, or have left scaled for a later one, is not to come back.
  void forget_passes();

  // Around one step, called by the handle.
  /// `overflow` names a gradient of the block; one of this optimizer takes its place.
  void skip_next_step(Overflow overflow);
  /// Returns false if the step is to be skipped. Errors: RuntimeError for a closure where masters exist, a step inside a
  /// scale_loss block or after passes with delay_unscale only, gradients that it would not read, a moved-from handle, or the
  /// original optimizer used in between.
  bool begin_step(bool has_closure);
  /// Errors: as `CustomOptimizerCheck::check`.
  void finish_step();
  bool skips_next_step() const { return gate_.skips(); }
  /// A saved state was loaded. If the next step was to be skipped, it is not any more, and the gradients that overflowed are
  /// dropped together with all others of this optimizer.
  void forget_skip();
  const StepResult& result() const { return gate_.result; }
  void set_loss_scale(double scale) { gate_.result.loss_scale = scale; }

  // Misuse.
  void keep_error(std::exception_ptr error) { gate_.keep_error(std::move(error)); }
  void throw_kept_error() { gate_.throw_kept_error(); }
  void retire() override { gate_.retire(); }
  /// Errors: as `StepGate::check_in_use`, and RuntimeError if the parameters are no longer with the handle.
  void check_in_use();

 private:
  StepsMasters* fused() const { return dynamic_cast<StepsMasters*>(handle()); }
  ShardedOptimizer* sharded() const { return dynamic_cast<ShardedOptimizer*>(handle()); }
  /// Nothing while a pass is open or gradients wait scaled for another one, which is to unscale those of all.
  void forget_gone_params();
  bool in_fused_order() const;
  /// Errors: RuntimeError for gradients that a sharded optimizer has from outside any block of it.
  void check_no_open_grads(const char* caller) const;
  /// Errors: RuntimeError naming `param` and the remedies, unless it is undefined.
  void check_no_stray(const at::Tensor& param, const char* caller) const;
  void take_layouts();
  void copy_masters_to_model();
  /// A parameter with a gradient that was left unreduced; undefined if there is none.
  at::Tensor unreduced_param() const;

  std::shared_ptr<Session> session_;
  std::shared_ptr<OriginalOptimizer> original_optimizer_;
  MasterTable table_;
  MasterWeightInit master_init_;
  GradPasses passes_;
  UnclaimedGrads unclaimed_;
  StepGate gate_;
  bool is_own_class_;
  CustomOptimizerCheck custom_optimizer_check_;
};

/// Those of a session's optimizers.
std::vector<std::shared_ptr<OptimizerStash>> stashes_of(const Session& session);
/// `OptimizerStash::forget_overwritten_masters` of all of them.
void forget_overwritten_masters(const Session& session);

/// A step may be captured in a CUDA graph alone, its scale_loss block outside: the graph would keep this block's scale, and
/// would not skip. Errors: as check_capture in scaling/, if one of the session's loss scales is dynamic, or with
/// skip_nonfinite.
void check_captured_step(OptimizerStash& stash);

}  // namespace apex::amp::detail
