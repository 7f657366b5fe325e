#pragma once

#include <apex_cpp/parallel/ddp/module_state.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace apex::parallel::detail {

/// Elements after a bucket's gradients, by which ranks exchange facts about the gradients in the same reduction: one element
/// per parameter, and a few per rank, which come last. The values are integers below 256, exact in every dtype.
class BucketTail {
 public:
  static int64_t numel(size_t params, int ranks) { return static_cast<int64_t>(params) + kPerRank * ranks; }

  /// `memory`: the last elements of the reduced memory. `names`: a hash of the names of the bucket's parameters.
  /// `counts_present`: a parameter's element counts the ranks that have its gradient, otherwise the ranks that lack it. Only
  /// the difference between zero and nonzero matters.
  void place(const at::Tensor& memory, size_t params, const ProcessGroup& group, uint64_t names, bool counts_present);

  /// Writes the facts of this rank: the number of its backward pass, which gradients it has, and whether one contains Inf or
  /// NaN (`found_nonfinite`, one element on the device). No synchronization.
  void say(int pass, const std::vector<bool>& is_here, const at::Tensor& found_nonfinite);

  /// After the reduction: starts to copy the elements to the host. The functions below wait for the copy.
  void fetch();
  /// Whether each parameter's element is greater than zero.
  std::vector<bool> counted() const;
  /// The ranks that are in another backward pass than this rank.
  std::vector<int> ranks_in_another_pass() const;
  /// The ranks whose bucket has other parameters than this rank's.
  std::vector<int> ranks_with_other_params() const;
  std::vector<int> ranks_that_lack() const;
  std::vector<int> ranks_with_nonfinite() const;

 private:
  std::vector<float> values() const;
  /// `says` gets the rank's elements.
  std::vector<int> ranks_that(const std::function<bool(const float*)>& says) const;

  // A rank's first element has its other facts; the rest is the hash of the names, one byte per element.
  static constexpr int kNameBytes = 4, kPerRank = 1 + kNameBytes;

  at::Tensor memory_, host_;
  at::Tensor blank_;                    // what is the same in every pass
  at::Tensor own_;                      // this rank's first element in memory_
  std::optional<c10::Event> is_there_;  // set while a copy from a GPU to host_ is in progress
  size_t params_ = 0;
  uint64_t names_ = 0;
  int pass_ = 0;
  bool counts_present_ = false;
};

/// The arithmetic of a bucket.
struct BucketArithmetic {
  bool in_float32 = false;   ///< 16-bit gradients are sent in float32
  double before = 1.0;       ///< factor before the reduction
  double after = 1.0;        ///< factor after the reduction
  bool keeps_views = false;  ///< gradients become views of the bucket's memory
  bool may_lack = false;     ///< some ranks may lack a gradient
  bool profiled = false;     ///< shows launch and end in profiles
};

/// Gradients that are reduced together, and the memory in which they are sent. Copies, scales and converts gradients in one
/// pass over memory each way; the pass before the reduction also checks for Inf and NaN, for the overflow report. Not
/// thread-safe.
class Bucket {
 public:
  /// `name`: the bucket's name in errors and profiles.
  Bucket(std::vector<NamedTensor> params, ProcessGroup group, std::string name, BucketArithmetic arithmetic);

  const std::vector<NamedTensor>& params() const { return params_; }
  bool has(const at::Tensor& param) const;
  bool is_on_cpu() const { return params_.front().tensor.is_cpu(); }

  /// Begins a backward pass: no gradient has arrived.
  void begin_pass();
  /// Records that the gradient of params()[position] has arrived.
  void arrive(size_t position);
  bool is_complete() const { return arrived_ == params_.size(); }

  /// Copies the gradients (zeros for missing ones) into the wire memory and starts the reduction. `pass`: as in
  /// BucketTail::say. Errors, before anything is sent: RuntimeError for a sparse gradient.
  void launch(int pass);
  /// Waits for the reduction and copies the result into the gradients. Errors: those of `wait` in collectives.h.
  void finish();
  /// After an error in the pass: leaves the memory to a running reduction, and allocates new memory.
  void abandon();

  /// The ranks' facts from the last reduction.
  const BucketTail& tail() const { return tail_; }
  /// Whether a gradient was missing at the launch.
  bool lacked() const { return !is_complete(); }
  /// The memory of which the gradients are views; undefined unless `keeps_views`.
  const at::Tensor& kept() const { return kept_; }

 private:
  void check_dense() const;
  void separate_grads() const;
  bool grads_are_views() const;
  void allocate();
  void flatten();
  std::vector<bool> counted_where_lacking() const;
  void write_back();
  void write_back_to_grads();
  std::vector<at::Tensor> views_of(const at::Tensor& flat) const;
  at::Tensor& grad(size_t i) const { return params_[i].tensor.mutable_grad(); }

  std::vector<NamedTensor> params_;
  ProcessGroup group_;
  std::string name_;
  BucketArithmetic arithmetic_;
  int64_t numel_ = 0;
  std::vector<bool> is_here_;
  size_t arrived_ = 0;
  at::Tensor wire_;                     // gradients, then the tail
  std::vector<at::Tensor> wire_views_;  // one per parameter, in its layout
  at::Tensor kept_;                     // the gradients in wire_, or memory in the parameters' dtype
  std::vector<at::Tensor> kept_views_;
  at::Tensor found_nonfinite_;
  BucketTail tail_;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace apex::parallel::detail
