#pragma once

#include <apex_cpp/parallel/ddp/module_state.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace apex::parallel::detail {

/// A few elements behind a bucket's gradients, by which ranks tell each other of these in the same reduction: one element for
/// each parameter, and one for each rank. Small whole numbers, exact in every dtype.
class BucketTail {
 public:
  static int64_t numel(size_t params, int ranks) { return static_cast<int64_t>(params) + ranks; }

  /// `memory`: the last elements of what is reduced. `counts_present`: a parameter's element counts the ranks that have its
  /// gradient, else those that lack it; either way the question is whether it is zero.
  void place(const at::Tensor& memory, size_t params, int ranks, bool counts_present);

  /// Says what rank `rank` has: the number of its backward pass, which gradients are here, and in `found_nonfinite` (one
  /// element, on the device) whether one held Inf or NaN. No synchronisation.
  void say(int rank, int pass, const std::vector<bool>& is_here, const at::Tensor& found_nonfinite);

  /// The reduction has come back: starts to bring the elements to the host, which these then wait for.
  void fetch();
  /// For each parameter whether its element is above zero.
  std::vector<bool> counted() const;
  /// Ranks whose gradients are of another pass than this one's.
  std::vector<int> ranks_in_another_pass() const;
  std::vector<int> ranks_that_lack() const;
  std::vector<int> ranks_with_nonfinite() const;

 private:
  std::vector<float> values() const;
  std::vector<int> ranks_that(const std::function<bool(int)>& says) const;

  at::Tensor memory_, host_;
  std::optional<c10::Event> is_there_;  // host_ is on its way from a GPU
  size_t params_ = 0;
  int pass_ = 0;
  bool counts_present_ = false;
};

/// What one bucket does with gradients on their way.
struct BucketArithmetic {
  bool in_float32 = false;   ///< on the wire, where they have 16 bits
  double before = 1.0;       ///< factor before the sum
  double after = 1.0;        ///< and after it
  bool keeps_views = false;  ///< gradients become views of the bucket's memory
  bool may_lack = false;     ///< a gradient may be missing on some ranks
  bool profiled = false;     ///< launches and ends are named in profiles
};

/// Gradients that are reduced together: the memory they travel in, and the way there and back. One pass over memory each way,
/// which multiplies and converts as well; the first also looks for Inf and NaN, for the report of an overflow. Not for two
/// threads at once.
class Bucket {
 public:
  /// `name`: what errors and profiles call it.
  Bucket(std::vector<NamedTensor> params, ProcessGroup group, std::string name, BucketArithmetic arithmetic);

  const std::vector<NamedTensor>& params() const { return params_; }
  bool has(const at::Tensor& param) const;
  bool is_on_cpu() const { return params_.front().tensor.is_cpu(); }

  /// A backward pass begins: no gradient has come.
  void begin_pass();
  /// That of params()[position] has come.
  void arrive(size_t position);
  bool is_complete() const { return arrived_ == params_.size(); }

  /// Copies the gradients into the wire memory, zeros where there are none, and starts the reduction. `pass`: as `say` of
  /// BucketTail. Errors, before anything is sent: RuntimeError for a sparse gradient.
  void launch(int pass);
  /// Waits for the reduction and brings it back into the gradients. Errors: as `wait` of collectives.h.
  void finish();
  /// The pass ended in an error: what is under way keeps its memory, and this bucket gets new one.
  void abandon();

  /// What the ranks have said of the last reduction.
  const BucketTail& tail() const { return tail_; }
  /// Whether some gradient had not come when it was launched.
  bool lacked() const { return !is_complete(); }
  /// The memory whose views gradients have become; undefined unless they do.
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
  at::Tensor wire_;                     // elements, then the tail
  std::vector<at::Tensor> wire_views_;  // as the parameters are laid out
  at::Tensor kept_;                     // the wire's elements, or memory of the parameters' dtype
  std::vector<at::Tensor> kept_views_;
  at::Tensor found_nonfinite_;
  BucketTail tail_;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace apex::parallel::detail
