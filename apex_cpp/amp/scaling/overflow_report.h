#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/amp/statistics/tensor_statistics.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// Describes an overflow: the first non-finite gradient and the likely cause. These functions synchronise, so they run only
// after an overflow was found.
namespace apex::amp::detail {

/// The first gradient with Inf or NaN. Empty if every gradient is finite and only a quotient or norm computed from them is not.
struct NonfiniteGrad {
  std::string parameter;
  int64_t inf_count = 0;
  int64_t nan_count = 0;
  int64_t numel = 0;
  /// Number of gradients with Inf or NaN, including this one.
  int64_t grads = 0;
  /// Statistics and dtype of the gradient, if this process has all of it.
  std::optional<TensorStatistics> statistics;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  /// Whether the gradient was reduced over processes before the check. `ranks` had Inf or NaN in the gradients that were
  /// reduced together with it, or, with `parallel::share_overflow`, in any gradient.
  bool is_reduced = false;
  std::vector<int> ranks;

  bool found() const { return inf_count + nan_count > 0; }
};

/// An overflow found at the end of a `scale_loss` block.
struct Overflow {
  int64_t loss_id = 0;
  double scale_before = 1;
  bool nonfinite_loss = false;
  bool in_half = false;  // the level computes in FP16
  NonfiniteGrad grad;
};

/// Whether any value of a dense tensor is Inf or NaN.
bool has_nonfinite(const at::Tensor& tensor);
/// The first of several gradients that has Inf or NaN, at position `index`. Not found() if all are finite.
struct FirstNonfinite {
  NonfiniteGrad grad;
  size_t index = 0;
};
FirstNonfinite first_nonfinite(std::vector<TensorStatistics> of_grads);

/// "rank 1", "ranks 0 3"
std::string ranks_text(const std::vector<int>& ranks);
/// "3 Inf and 1 NaN among the 30 values of the gradient of 'fc.weight' (from rank 1), the first of 2 such gradients; its finite
/// values reach 61440, and 4 % of those that are not 0 are subnormal in Half"
std::string describe(const NonfiniteGrad& grad);

/// Warns of many overflows in a row (`LossScaler::skip_warning`) and prints the likely cause. Call once in a row of overflows.
void warn_of_skips(const LossScaler& scaler, const Overflow& overflow);

// Exchange of overflows between processes, which every scale_loss block calls before it decides about the step. Without
// `apex::parallel::share_overflow` there is no exchange.

/// Given whether this process found an overflow, returns the ranks that did. Collective.
using OverflowExchange = std::function<std::vector<int>(bool found_here)>;

/// Begins an exchange, which lives until `end_overflow_exchange`. Of the living ones the newest is in force. Callable from any
/// thread.
std::shared_ptr<const OverflowExchange> begin_overflow_exchange(OverflowExchange exchange);
/// Exchanges may end in any order. No-op for null. Callable from any thread.
void end_overflow_exchange(const std::shared_ptr<const OverflowExchange>& exchange);

/// The ranks that found an overflow in this block; empty without an exchange, or unless `scaler.checks_overflow()`.
std::vector<int> ranks_with_overflow(const LossScaler& scaler, bool found_here);

}  // namespace apex::amp::detail
