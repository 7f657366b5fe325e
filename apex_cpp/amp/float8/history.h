#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include "opt_levels/properties.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace apex::kernels {
enum class Float8 : unsigned char;
struct Float8Values;
}  // namespace apex::kernels

namespace apex::amp::detail {

using opt_levels::Float8Format;

/// What an operand of a product is.
enum class Float8Role : unsigned char { activation, weight, gradient };
inline constexpr int64_t kFloat8Roles = 3;

kernels::Float8 kernels_format(Float8Format format);

/// The scales of the products of one weight, and the largest magnitudes of their operands in this pass: float32, [3], by role.
/// A scale of 0: the operand's own scale, as no pass is known. `largest` is undefined where nothing is recorded.
struct Float8Delays {
  at::Tensor scales, largest;
  bool defined() const { return scales.defined(); }
};

/// Rounds an operand to `format` with its scale in `delays`, and records its largest magnitude there. Values beyond the scale's
/// range become the format's largest; an operand with Inf or NaN becomes NaN throughout. bfloat16, any device. Does not
/// synchronise with a GPU that has the delays, too.
kernels::Float8Values round_delayed(const at::Tensor& operand, Float8Role role, Float8Format format,
                                    const Float8Delays& delays);

/// The recipe `delayed`: each operand's scale comes from the largest magnitude that it had in the last 1024 passes. This is
/// TransformerEngine's DelayedScaling with its defaults (margin 0, `max`), but scales are powers of two, an operand without a
/// past takes its own scale instead of 1, and a magnitude that is not finite is not recorded.
///
/// A pass ends with a `scale_loss` block. Callable from any thread.
class Float8History {
 public:
  static constexpr int64_t kPasses = 1024;

  /// `parameters`: the names of all weights. The tensors are made on `device`.
  Float8History(std::vector<std::string> parameters, c10::Device device, Float8Format gradients);

  const std::vector<std::string>& parameters() const { return parameters_; }
  /// For a product with this weight; undefined if the weight is unknown. Records in grad mode only.
  Float8Delays of(const std::string& parameter) const;
  /// The largest magnitudes of this pass: float32, [parameters, 3]; 0 for an operand that was not seen, Inf for one that was
  /// not finite. Processes that train one model take the maximum over all.
  const at::Tensor& largest() const { return largest_; }
  /// Moves the largest magnitudes of this pass into the history and computes the scales of the next one. After a step that is
  /// skipped: forgets them, and nothing else changes.
  void end_pass(bool skipped);

  /// The magnitudes of the passes so far, oldest first: float32, [passes, parameters, 3]. Together with `load` this is all
  /// that a checkpoint needs.
  at::Tensor state() const;
  /// Errors: ValueError if `state` is not such a tensor, of `count` parameters.
  static void check(const at::Tensor& state, size_t count);
  /// Takes a checked state, and forgets this pass.
  void load(const at::Tensor& state);
  void forget() { load(state().slice(0, 0, 0)); }

 private:
  void update_scales();

  std::vector<std::string> parameters_;
  std::map<std::string, size_t> rows_;
  Float8Format gradients_;
  mutable std::mutex mutex_;
  at::Tensor history_;  // [1024, parameters, 3], of which `passes_` rows are used; the next one to write is passes_ % 1024
  int64_t passes_ = 0;
  at::Tensor largest_;
  std::vector<at::Tensor> scales_of_, largest_of_;  // rows
};

}  // namespace apex::amp::detail
