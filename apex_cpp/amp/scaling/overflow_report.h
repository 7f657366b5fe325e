#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/amp/statistics/tensor_statistics.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

// What is found out once a block has overflowed, and how it is told. All of this waits for the device, so none of it runs
// before an overflow is known.
namespace apex::amp::detail {

/// The first gradient with Inf or NaN in it. Empty where every gradient is finite and only what was made of them (a quotient
/// or a norm) is not.
struct NonfiniteGrad {
  std::string parameter;
  int64_t inf_count = 0;
  int64_t nan_count = 0;
  int64_t numel = 0;
  /// How many gradients have such values, this one among them.
  int64_t grads = 0;
  /// What it holds, and in which dtype, where a process has all of it.
  std::optional<TensorStatistics> statistics;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  /// Gradients are reduced over processes before they are looked at, and these ranks had Inf or NaN among theirs: in the
  /// gradients that were reduced together with this one, or, where processes share overflows, in any.
  bool is_reduced = false;
  std::vector<int> ranks;

  bool found() const { return inf_count + nan_count > 0; }
};

/// What one `scale_loss` block's overflow was about.
struct Overflow {
  int64_t loss_id = 0;
  double scale_before = 1;
  bool nonfinite_loss = false;
  bool in_half = false;  // the level computes in FP16
  NonfiniteGrad grad;
};

/// Whether any value of a dense tensor is Inf or NaN.
bool has_nonfinite(const at::Tensor& tensor);
/// Of records of gradients: the first with Inf or NaN, at `index`, and how many there are. Not found() if there is none.
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

/// Warns, once in a row of overflows, and says what may be wrong: hardly a dynamic scale (LossScaler's skip_warning).
void warn_of_skips(const LossScaler& scaler, const Overflow& overflow);

}  // namespace apex::amp::detail

// Where processes tell each other of overflows: each scale_loss block asks here before it decides. Nobody answers unless
// `apex::parallel::share_overflow` is in force.
namespace apex::amp::detail {

/// Takes whether this process has found an overflow, and answers the ranks that have.
using OverflowExchange = std::function<std::vector<int>(bool found_here)>;

/// Puts an exchange in the place of another; null for none. Returns the one from before. From any thread.
OverflowExchange set_overflow_exchange(OverflowExchange exchange);

/// The ranks that found an overflow in a block of `scaler`'s; empty without an exchange, or where nobody looks for overflow.
std::vector<int> ranks_with_overflow(const LossScaler& scaler, bool found_here);

}  // namespace apex::amp::detail
