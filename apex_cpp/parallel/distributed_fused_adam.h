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

/// Options of DistributedFusedAdam, with Apex's names and defaults. A parameter group may have its own
/// optimizers::FusedAdamOptions.
struct DistributedFusedAdamOptions {
  /* implicit */ DistributedFusedAdamOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(optimizers::Betas, betas) = optimizers::Betas(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  /// Apply weight decay to the step (AdamW) instead of the gradient.
  TORCH_ARG(bool, adam_w_mode) = true;
  TORCH_ARG(double, weight_decay) = 0;
  /// Not supported: true is an error.
  TORCH_ARG(bool, amsgrad) = false;

  /// The ranks that share the optimizer; null: the default group.
  TORCH_ARG(ProcessGroup, process_group);
  /// The size of a gradient bucket in MiB.
  TORCH_ARG(double, bucket_cap_mb) = 100;
  /// The dtype of the moments: float32, bfloat16 or float16.
  TORCH_ARG(at::ScalarType, dtype) = at::kFloat;
  /// How moments are stored; bfloat16 is the same as `dtype` bfloat16. Other values than float32 need `dtype` float32. Random
  /// rounding to int8 depends on the step, the parameter's position and the element of the whole parameter alone: neither the
  /// number of ranks nor the size of buckets changes a bit.
  TORCH_ARG(optimizers::MomentStorage, moment_storage) = optimizers::MomentStorage::float32;
  /// The dtypes in which gradients and new parameters are sent. Not set: the parameter's dtype, which is exact.
  TORCH_ARG(std::optional<at::ScalarType>, grad_sync_dtype);
  TORCH_ARG(std::optional<at::ScalarType>, param_sync_dtype);
  /// Send gradients during the backward pass; false: at its end. If a rank may leave parameters unused, ranks send buckets at
  /// different points of the pass, and the buckets of unused parameters in `step` or at the end of the scale_loss block. Set it
  /// to false if the program runs a collective operation before that, or if the model has a SyncBatchNorm; or give this
  /// optimizer a `process_group` of its own, `new_group` of all ranks.
  TORCH_ARG(bool, overlap_grad_sync) = true;
  /// `step` returns before new parameters have arrived. Call `finish_param_sync` before you read, write or load them. A rank
  /// that writes before gets an error there and in each further call: it then needs a new optimizer.
  TORCH_ARG(bool, overlap_param_sync) = false;
  /// Average gradients over ranks; false: sum them.
  TORCH_ARG(bool, average_grad_sync) = true;
  /// Keep float32 masters of 16-bit parameters.
  TORCH_ARG(bool, store_params) = true;
  /// How each rank stores the masters of its part of the bfloat16 parameters; with remainders also if store_params is false.
  /// Float32 parameters have no remainders, and float16 ones are an error of `step`. Remainders need bfloat16 as
  /// param_sync_dtype, or none. stochastic is an error.
  TORCH_ARG(optimizers::MasterStorage, master_storage) = optimizers::MasterStorage::float32;

 public:
  /// Apex's name of master_storage remainder16. Apex also wants store_params(false) and bfloat16 as param_sync_dtype, which
  /// change nothing here.
  DistributedFusedAdamOptions& store_param_remainders(bool stores);
  bool store_param_remainders() const { return master_storage_ == optimizers::MasterStorage::remainder16; }
  bool stores_remainders() const { return master_storage_ != optimizers::MasterStorage::float32; }
  optimizers::FusedAdamOptions adam() const;
};

/// FusedAdam with masters, moments and gradient sums sharded over the ranks of a process group (ZeRO-2): each rank keeps and
/// updates one shard. Use it instead of DistributedDataParallel. Apex: apex.contrib.optimizers.DistributedFusedAdam.
///
///     auto options = apex::parallel::DistributedFusedAdamOptions(1e-3).bucket_cap_mb(25);
///     apex::parallel::DistributedFusedAdam optimizer(model->parameters(), options);
///     auto [net, opt] = apex::amp::initialize(model, optimizer, "O2");  // or without amp
///
/// During the backward pass, each bucket of gradients is taken out of the parameters and averaged over the ranks, in float32
/// and in rank order (with NCCL: in NCCL's order and the sent dtype); each rank keeps its shard of the sum. `step` updates the
/// shards and gathers the parameters, which then have the same bits on all ranks. No gradients remain in the parameters, so
/// clip with `clip_grad_norm` (with amp also amp::clip_grad_norm_), not with torch's function.
///
/// `step` updates the parameters that have a gradient on any rank; a rank without one adds zeros. Several backward passes
/// before a step accumulate; inside `no_sync` only the last one sends. Frozen parameters are skipped until they are unfrozen,
/// the same ones on all ranks; those with state from a loaded archive are sent as zeros. A tied parameter counts once.
///
/// Results: for the same gradients, the bits of FusedAdam with masters. On N ranks the gradients are the same if the sum over
/// ranks equals the sum of one process, as for values of few bits. Otherwise results differ by the rounding of that sum, and
/// are reproducible. With a master_storage or moment_storage, the bits are those of FusedAdam with the same.
///
/// With remainders, `step` reads this rank's part of the bfloat16 parameters: a program that writes to a parameter changes the
/// master by as much, and has to write the same on all ranks.
///
/// With amp, at every level: the end of a scale_loss block sums the scaled gradients, and all ranks find the same overflow,
/// also one in another optimizer of the block on one rank. A skipped step changes no bit on any rank. Blocks with delay_unscale
/// leave gradients in the parameters, and the last block sends all. amp makes no masters of its own, and amp::master_params is
/// an error. Values that the program writes into the model go into float32 masters in the next step, unless they equal the
/// rounded masters; amp::clear_cast_cache says which writes through `weight.data()` are seen.
///
/// Checkpoints: every rank calls amp::save_checkpoint. The ranks gather one tensor at a time, and rank 0, which holds the whole
/// state on its CPU, writes the file. Every rank loads the file, at any number of ranks. FusedAdam loads it as well, and the
/// other way round.
///
/// Parameters: float16, bfloat16, float32, dense, on CPU (Gloo) or CUDA (NCCL). The host waits for the gradients' flags in each
/// step. The constructor, backward, `step`, `zero_grad`, `clip_grad_norm`, `grad_norm`, `save` and `add_param_group` are
/// collective: every rank calls them in the same order. A rank without a batch may leave out backward passes before `step`,
/// except passes after `grad_norm` or `clip_grad_norm`, and passes whose gradients `zero_grad` drops. With amp at a level with
/// master weights, with a loss scale that is dynamic or not 1, or with fp8 "delayed" (by default at O1, O2, O5 and O6), every
/// rank opens the same scale_loss blocks: one without a batch gives them `torch::zeros({})`, without a backward pass. A
/// captured step in a CUDA graph is an error.
///
/// Errors, before anything is changed: those of FusedAdam; ValueError for invalid options, for options that differ between
/// ranks, for parameters that differ between ranks in shape, layout or dtype, for parameters that share memory, as `set_data`
/// ties them, for loss scales that differ, and for ranks that train different parameters; TypeError for another dtype;
/// RuntimeError in `step` for a gradient of a parameter that was taken out of the groups; c10::DistBackendError if another rank
/// fails or exceeds the group's time-out.
class DistributedFusedAdam : public optimizers::FusedAdam, public amp::ShardedOptimizer {
 public:
  /// During its lifetime, backward passes accumulate gradients in the parameters. The first pass afterwards sends the sums.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<detail::ShardedGrads> sync);
    ~NoSync();
    NoSync(NoSync&&) = default;
    NoSync& operator=(NoSync&&) = delete;

   private:
    std::shared_ptr<detail::ShardedGrads> sync_;
  };

  /// Copies rank 0's values of all parameters to all ranks.
  explicit DistributedFusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                const DistributedFusedAdamOptions& options = {});
  explicit DistributedFusedAdam(std::vector<at::Tensor> params, const DistributedFusedAdamOptions& options = {})
      : DistributedFusedAdam({torch::optim::OptimizerParamGroup(std::move(params))}, options) {}
  DistributedFusedAdam(DistributedFusedAdam&&) = default;
  DistributedFusedAdam& operator=(DistributedFusedAdam&&) = default;
  ~DistributedFusedAdam() override;

  torch::Tensor step(LossClosure closure = nullptr) override;
  /// Drops the gradients and their sums, whatever the argument. `zero_grad` through a torch::optim::Optimizer& does not drop
  /// the sums.
  void zero_grad(bool set_to_none = true);
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  [[nodiscard]] NoSync no_sync();
  /// The L2 norm of the gradients over all ranks, unscaled if amp or GradScaler::unscale_ has unscaled them. Synchronizes.
  /// Errors: RuntimeError in a scale_loss block, and after blocks with delay_unscale alone.
  double grad_norm();
  /// Makes `step` scale the gradients so that this norm is at most `max_norm`; returns the norm before. Does nothing if the
  /// norm is not finite. Errors: ValueError unless max_norm > 0; those of `grad_norm`.
  double clip_grad_norm(double max_norm);
  /// With overlap_param_sync: waits until the new parameters have arrived. Otherwise does nothing.
  void finish_param_sync() const;

  /// The bytes of masters or remainders, and of moments, on this rank. Float32 parameters are their own masters and do not
  /// count.
  int64_t state_bytes() const;

  /// The state of all ranks in the layout of FusedAdam: each class loads the other's archive, at any number of ranks. `save` is
  /// collective and gathers one tensor at a time; only rank 0's archive has the state. `load` takes rank 0's archive on every
  /// rank; that of another rank is an error.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  const std::type_info* amp_handle_class() const override { return &typeid(DistributedFusedAdam); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override;
  /// Undefined: no process has the whole of a master.
  at::Tensor kept_master_of(const at::Tensor& /*param*/) const override { return {}; }
  /// Writes the whole parameter, and this rank's part of the remainder.
  bool load_kept_master(const at::Tensor& param, const at::Tensor& value) override;

  // The interface of amp::ShardedOptimizer.
  std::shared_ptr<amp::GradShards> grad_shards() const override;
  bool keeps_masters() const override { return store_params_; }
  void weights_were_written() override { written_.clear(); }
  const char* saved_as() const override { return "apex::optimizers::FusedAdam"; }
  bool writes_file() const override;
  void agree_on_file(const std::string& error) const override;
  void load_master(const at::Tensor& param, const at::Tensor& value) override;

 protected:
  /// An empty state: a step makes the tensors of this rank's part.
  std::unique_ptr<torch::optim::OptimizerParamState> new_state(const optimizers::detail::SteppedParam& param) const override;
  void update() override;

 private:
  struct SteppedPart;
  struct Parts;

  detail::ShardedGrads& sync() const;
  void check_unscaled(const char* caller) const;
  bool is_stopped() const;
  void check_dtypes() const;
  /// Whether masters are tensors of their own; the alternatives are remainders, and parameters that are their own masters.
  bool has_own_master(const at::Tensor& param) const;
  at::ScalarType sent_dtype(const at::Tensor& param) const;
  detail::Part part_of(const at::Tensor& param) const;
  at::Tensor part_of(const at::Tensor& param, const at::Tensor& full) const;
  at::Tensor master_of(const at::Tensor& param);
  /// Null if no gathering has written the parameter since its master was loaded.
  const amp::detail::WeightRecord* record_of(const at::Tensor& param) const;
  at::Tensor with_written_values(const at::Tensor& param, const at::Tensor& master) const;
  /// Whether a parameter shows a write through `data()`, which may have reached others in places that no sample is of.
  bool has_hidden_writes() const;
  std::vector<Parts> parts_of(size_t group);
  SteppedPart stepped_part(const at::Tensor& param);
  Parts& set_for(std::vector<Parts>& sets, const at::Tensor& param) const;
  void slice_states(torch::optim::Optimizer& read);
  void slice_state(const at::Tensor& param, const std::string& name, optimizers::FusedAdamParamState& state);
  at::Tensor loaded_part(const at::Tensor& param, const at::Tensor& full, at::ScalarType dtype) const;
  void split_whole(const at::Tensor& param, const at::Tensor& value);
  at::Tensor gathered(const at::Tensor& param, const at::Tensor& part) const;

  std::shared_ptr<detail::ShardedGrads> sync_;             // null after a move
  mutable std::shared_ptr<detail::ParamSync> param_sync_;  // of the last step
  std::optional<at::ScalarType> param_sync_dtype_;
  bool overlap_param_sync_;
  bool store_params_;
  /// The parameters after the last gathering, which wrote the rounded masters.
  mutable std::unordered_map<const at::TensorImpl*, amp::detail::WeightRecord> written_;
};

optimizers::FusedAdamOptions options_of(const DistributedFusedAdam*);

}  // namespace apex::parallel
