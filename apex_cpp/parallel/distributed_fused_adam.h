#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/tensors/tensor_version.h>
#include <apex_cpp/optimizers/fused_adam.h>
#include <apex_cpp/parallel/processes/process_group.h>

namespace apex::parallel {

namespace detail {
class ShardedGrads;
class ParamSync;
struct Part;
}  // namespace detail

/// Options of DistributedFusedAdam, under Apex's names and with its defaults. A group may have its own
/// optimizers::FusedAdamOptions.
struct DistributedFusedAdamOptions {
  /* implicit */ DistributedFusedAdamOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(optimizers::Betas, betas) = optimizers::Betas(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  /// Weight decay joins the step (AdamW) instead of the gradient.
  TORCH_ARG(bool, adam_w_mode) = true;
  TORCH_ARG(double, weight_decay) = 0;
  /// Not supported: true is an error.
  TORCH_ARG(bool, amsgrad) = false;

  /// The ranks that share the optimizer; null: the default group.
  TORCH_ARG(ProcessGroup, process_group);
  /// MiB of gradients that are sent at once.
  TORCH_ARG(double, bucket_cap_mb) = 100;
  /// Of the moments: float32, bfloat16 or float16.
  TORCH_ARG(at::ScalarType, dtype) = at::kFloat;
  /// In which gradients and new parameters are sent; not set: in the parameter's own, which loses nothing.
  TORCH_ARG(std::optional<at::ScalarType>, grad_sync_dtype);
  TORCH_ARG(std::optional<at::ScalarType>, param_sync_dtype);
  /// Send gradients while backward runs; false: at its end. Where a rank may leave parameters unused, ranks send at different
  /// places of the pass, and the buckets of such parameters in `step`, or at the end of the scale_loss block. A collective
  /// operation of the program's before that then needs this false; a SyncBatchNorm in the model too, or a `process_group` for
  /// this optimizer that nobody else uses, `new_group` of all ranks.
  TORCH_ARG(bool, overlap_grad_sync) = true;
  /// `step` returns while new parameters are under way; `finish_param_sync` is to be called before they are read.
  TORCH_ARG(bool, overlap_param_sync) = false;
  /// Gradients are the mean over ranks; false: their sum.
  TORCH_ARG(bool, average_grad_sync) = true;
  /// Keep float32 masters of 16-bit parameters.
  TORCH_ARG(bool, store_params) = true;

 public:
  optimizers::FusedAdamOptions adam() const;
};

/// FusedAdam whose masters, moments and gradient sums are spread over the ranks of a process group (ZeRO-2): each rank keeps
/// and updates one part in `ranks` of them. In place of DistributedDataParallel, not beside it. Apex:
/// apex.contrib.optimizers.DistributedFusedAdam.
///
///     auto options = apex::parallel::DistributedFusedAdamOptions(1e-3).bucket_cap_mb(25);
///     apex::parallel::DistributedFusedAdam optimizer(model->parameters(), options);
///     auto [net, opt] = apex::amp::initialize(model, optimizer, "O2");  // or without amp
///
/// Gradients leave the parameters during backward: each is added up over the ranks and divided by their number, bucket by
/// bucket, in float32 and in rank order (over NCCL in NCCL's order, in the dtype they are sent in), and its part kept. `step`
/// updates the parts and gathers the parameters, which have the same bits on all ranks then. Gradients are used up by it; none
/// are left in the parameters, so clip with `clip_grad_norm` (with amp also amp::clip_grad_norm_), not with torch's function.
///
/// Which parameters are stepped: those with a gradient on any rank, where a rank without one adds zeros. Several backward
/// passes before a step add up; with all but the last one inside `no_sync` they are sent once. Frozen parameters are left alone
/// until they are no longer frozen. Tied ones count once.
///
/// Results: with the same gradients, the parameters and state of FusedAdam (with masters) bit for bit; on N ranks that is
/// wherever the sum over ranks is what one process would have added up, as with values of few bits. Otherwise they differ by
/// the rounding of that sum, and have the same bits from run to run.
///
/// With amp, at every level: the end of a scale_loss block adds the gradients up, scaled, and all ranks find the same overflow,
/// be it in another optimizer of the block on one rank; a skipped step changes no bit on any. Blocks with delay_unscale leave
/// theirs in the parameters, and the last one sends all.
/// amp makes no masters beside the optimizer's own; amp::master_params is an error. Weights that the program writes into the
/// model go to the masters in the next step, as far as they are not the rounded masters; of writes through `weight.data()`,
/// amp::clear_cast_cache tells.
///
/// Checkpoints: every rank calls amp::save_checkpoint; all gather, one tensor at a time, and rank 0, which has the whole state
/// on its CPU meanwhile, writes. Every rank loads the file, at any number of ranks, and so does FusedAdam, and the other way
/// round.
///
/// Parameters: float16, bfloat16, float32, dense, on CPU (Gloo) or CUDA (NCCL). The host waits for the gradients' flags in each
/// step. Constructor, backward, `step`, `zero_grad`, `clip_grad_norm`, `grad_norm`, `save` and `add_param_group` are
/// collective: every rank calls them, in the same order. A rank without a batch may leave out backward passes before `step`,
/// not ones after `grad_norm` or `clip_grad_norm`, nor ones that `zero_grad` drops; with amp and a loss scale that is dynamic
/// or not 1 (O1 and O2 unless set) every rank opens the same scale_loss blocks. CUDA graphs: a captured step is an error.
/// Errors, before anything is changed: those of FusedAdam; ValueError for options that no rank can have or that differ between
/// ranks, for parameters that differ between ranks in shape, layout or dtype, and for a loss scale that does; TypeError for
/// another dtype; and c10::DistBackendError when another rank fails or keeps silent beyond the group's time-out.
class DistributedFusedAdam : public optimizers::FusedAdam, public amp::ShardedOptimizer {
 public:
  /// Keeps gradients where they are while it lives: passes add up in the parameters, and are sent by the first pass after it.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<detail::ShardedGrads> sync);
    ~NoSync();
    NoSync(NoSync&&) = default;
    NoSync& operator=(NoSync&&) = delete;

   private:
    std::shared_ptr<detail::ShardedGrads> sync_;
  };

  /// Takes rank 0's values of all parameters.
  explicit DistributedFusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                const DistributedFusedAdamOptions& options = {});
  explicit DistributedFusedAdam(std::vector<at::Tensor> params, const DistributedFusedAdamOptions& options = {})
      : DistributedFusedAdam({torch::optim::OptimizerParamGroup(std::move(params))}, options) {}
  DistributedFusedAdam(DistributedFusedAdam&&) = default;
  DistributedFusedAdam& operator=(DistributedFusedAdam&&) = default;
  ~DistributedFusedAdam() override;

  torch::Tensor step(LossClosure closure = nullptr) override;
  /// Drops the gradients, sums included, whatever the argument says. The one of torch::optim::Optimizer& does not reach the
  /// sums.
  void zero_grad(bool set_to_none = true);
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  [[nodiscard]] NoSync no_sync();
  /// The L2 norm of the gradients over all ranks, unscaled as far as amp or GradScaler::unscale_ have seen to it. Synchronises.
  double grad_norm();
  /// Has `step` multiply the gradients by what makes this norm at most `max_norm`; returns the norm from before. A norm that is
  /// not finite changes nothing. Error: ValueError unless max_norm > 0.
  double clip_grad_norm(double max_norm);
  /// With overlap_param_sync: waits until the parameters are those of the last step. Does nothing otherwise.
  void finish_param_sync() const;

  /// Bytes of masters and moments that this rank keeps, apart from float32 parameters, which are their own masters.
  int64_t state_bytes() const;

  /// The state of all ranks in the layout of FusedAdam, which may load it and the other way round, at any number of ranks.
  /// `save` is collective: rank 0's archive has everything, the others' have no state; they gather one tensor at a time. `load`
  /// takes rank 0's archive on every rank.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(DistributedFusedAdam); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;

  // What amp asks.
  std::shared_ptr<amp::GradShards> grad_shards() const override;
  bool keeps_masters() const override { return store_params_; }
  void weights_were_written() override { written_.clear(); }
  const char* saved_as() const override { return "apex::optimizers::FusedAdam"; }
  bool writes_file() const override;
  void agree_on_file(const std::string& error) const override;
  void load_master(const at::Tensor& param, const at::Tensor& value) override;

 protected:
  void update() override;

 private:
  struct Parts;

  detail::ShardedGrads& sync() const;
  bool is_stopped() const;
  bool has_own_master(const at::Tensor& param) const;
  at::ScalarType sent_dtype(const at::Tensor& param) const;
  detail::Part part_of(const at::Tensor& param) const;
  at::Tensor part_of(const at::Tensor& param, const at::Tensor& full) const;
  at::Tensor master_of(const at::Tensor& param);
  void take_written_values(const at::Tensor& param, const at::Tensor& master);
  std::vector<Parts> parts_of(size_t group);
  void slice_states(torch::optim::Optimizer& read);
  at::Tensor gathered(const at::Tensor& param, const at::Tensor& part) const;

  std::shared_ptr<detail::ShardedGrads> sync_;             // null once moved from
  mutable std::shared_ptr<detail::ParamSync> param_sync_;  // of the last step
  at::ScalarType dtype_;
  std::optional<at::ScalarType> param_sync_dtype_;
  bool overlap_param_sync_;
  bool store_params_;
  /// Parameters as the last gathering left them: their masters, rounded.
  mutable std::unordered_map<const at::TensorImpl*, amp::detail::TensorVersion> written_;
};

optimizers::FusedAdamOptions options_of(const DistributedFusedAdam*);

}  // namespace apex::parallel
