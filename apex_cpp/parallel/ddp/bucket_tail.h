#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <functional>
#include <optional>
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

}  // namespace apex::parallel::detail
