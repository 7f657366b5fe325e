#pragma once

#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/parallel/ddp/bucket.h>
#include <apex_cpp/parallel/ddp/bucket_plan.h>
#include <apex_cpp/parallel/ddp/ddp_options.h>
#include <apex_cpp/parallel/ddp/module_state.h>
#include <torch/nn/module.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace apex::parallel::detail {

/// The implementation of DistributedDataParallel, independent of the module's class. Hooks on the parameters' gradients follow
/// backward passes. A bucket is reduced as soon as all of its gradients and all earlier buckets are complete, and all results
/// are written back before `backward()` returns.
///
/// | pass                       | buckets                                          | reduced                            |
/// |----------------------------|--------------------------------------------------|------------------------------------|
/// | first, or after the trained parameters changed | formed at its end by arrival, rank 0's for all ranks | at its end |
/// | later                      | as they are                                      | while it runs, in the plan's order |
/// | any, delay_allreduce       | one for each dtype                               | at its end                         |
/// | paused (no_sync)           | –                                                | not at all                         |
///
/// Autograd calls hooks on any of its threads; a mutex protects their state.
class DdpEngine : public amp::detail::GradSync, public std::enable_shared_from_this<DdpEngine> {
 public:
  /// Checks that the ranks agree, copies rank 0's parameters and buffers to all ranks, and installs the hooks.
  static std::shared_ptr<DdpEngine> attach(const torch::nn::Module& module, const DistributedDataParallelOptions& options);
  ~DdpEngine() override;

  /// Begins a forward pass: the next backward pass may fill the retained buffers.
  void begin_forward();
  /// While paused, gradients are not reduced. Calls nest.
  void pause() { ++paused_; }
  void resume() { --paused_; }
  std::vector<at::Tensor> allreduce_buffers() const;

  std::vector<int> ranks_with_nonfinite(const at::Tensor& param) const override;
  void take_maximum(const at::Tensor& values) const override;

 private:
  DdpEngine(ModuleState state, const DistributedDataParallelOptions& options);

  void check_devices() const;
  BucketArithmetic arithmetic() const;
  std::vector<size_t> trained_now() const;
  void hook_new_params();
  /// Errors: RuntimeError with the name of a parameter whose gradient no longer calls its hook.
  void check_hooks_hear(const std::vector<size_t>& indices) const;

  // One backward pass. The caller holds the mutex.
  void on_gradient(size_t index);
  void begin_pass(int graph_task);
  void end_pass();
  void follow_trained_params();
  void make_buckets(const BucketPlan& plan);
  BucketPlan plan_after_arrival() const;
  void launch_complete();
  void check_amp_once();
  void check_same_trained() const;
  void take_grads_at_end();
  void take_unreduced_grads();
  void reduce_rest();
  void abandon_pass();
  void check_last_pass() const;
  /// Errors: c10::DistBackendError, on every rank, if one continued alone after a pass that threw.
  void check_same_pass() const;
  /// Errors: RuntimeError, on every rank, if the buckets of ranks have different parameters.
  void check_same_params() const;
  /// Errors: RuntimeError, on every rank, with the parameters that got no gradient and the ranks.
  void check_all_there() const;
  /// Whether to read the facts of the last reduction now: without waiting for a GPU, or because this rank lacks a gradient.
  bool can_check_at_once() const;

  ModuleState state_;
  DistributedDataParallelOptions options_;
  std::vector<ProcessGroup> groups_;
  mutable std::mutex mutex_;
  bool amp_is_checked_ = false;  // set at the end of the first pass
  std::vector<size_t> trained_;  // indices of params
  std::deque<Bucket> buckets_;   // empty until the first pass has formed them
  struct Place {
    Bucket* bucket = nullptr;
    size_t position = 0;
  };
  std::vector<Place> place_of_;
  std::atomic<int> paused_{0};
  std::vector<at::Tensor> retained_;  // the buffers of the last pass, until the next one begins
  std::atomic<bool> filled_{false};   // they hold its gradients, and no forward pass has begun since

  // State of the current pass.
  static constexpr int kNoPass = -1;
  int graph_task_ = kNoPass;
  int pass_ = 0;  // the number of passes begun; the same on every rank
  std::vector<size_t> arrival_;
  std::vector<bool> has_arrived_;
  size_t launched_ = 0;
  bool check_is_due_ = false;  // the last pass is unchecked: its facts are being copied from the GPU

  GradHooks hooks_;  // declared last, so that it is destroyed first
};

}  // namespace apex::parallel::detail
