#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include "opt_levels/properties.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
/// A scale of 0: no pass is known yet, and the operand takes the scale of its own values. `largest` is undefined where nothing
/// is recorded.
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
/// A pass ends with a `scale_loss` block, for the weights of the block's optimizers. Each weight has a row, by its position
/// among `parameters`. Callable from any thread.
class Float8History {
 public:
  static constexpr int64_t kPasses = 1024;
  /// By weight. New for each pass, so that a graph can keep those of its forward pass.
  using Scales = std::shared_ptr<const std::vector<at::Tensor>>;
  using Rows = std::vector<int64_t>;

  /// `parameters`: the names of all weights. The tensors are made on `device`.
  Float8History(std::vector<std::string> parameters, c10::Device device, Float8Format gradients);

  const std::vector<std::string>& parameters() const { return parameters_; }
  /// Nothing for a tensor that is no weight.
  std::optional<int64_t> row_of(const std::string& parameter) const;
  /// For a product with this weight; undefined if the weight is unknown. Records in grad mode only.
  Float8Delays of(const std::string& parameter) const;

  /// The largest magnitudes of some weights in this pass: float32, [rows, 3]; 0 for an operand that was not seen, Inf for one
  /// that was not finite. Processes that train one model take the maximum over all.
  at::Tensor largest(const Rows& rows) const;
  /// Moves `largest` of these rows into the history, computes the scales of the next pass, and begins their pass anew.
  void end_pass(const Rows& rows, const at::Tensor& largest);
  /// Begins the pass of these rows anew, after a step that is skipped. Nothing else changes.
  void forget_pass(const Rows& rows);

  /// The magnitudes of the passes so far, oldest first, on the CPU: float32, [passes, parameters, 3]. Together with `load` this
  /// is all that a checkpoint needs between two passes.
  at::Tensor state() const;
  /// Errors: ValueError if `state` is not such a tensor, of `count` parameters.
  static void check(const at::Tensor& state, size_t count);
  /// Takes a checked state, and begins this pass anew.
  void load(const at::Tensor& state);

  Scales scales() const;

 private:
  void update_scales();
  void forget_rows(const Rows& rows);

  std::vector<std::string> parameters_;
  std::map<std::string, int64_t> rows_;
  Float8Format gradients_;
  mutable std::mutex mutex_;
  at::Tensor history_;  // [1024, parameters, 3], of which `passes_` rows are used; the next one to write is passes_ % 1024
  at::Tensor groups_;   // [32, parameters, 3]: the maxima of 32 rows each, so that a pass reads 64 rows
  int64_t passes_ = 0;
  at::Tensor largest_;
  std::vector<at::Tensor> largest_of_;  // rows
  Scales scales_;
};

/// Loads what was saved of a history. Either may be absent: null, or undefined. `is_of_same_weights`: whether the names agree.
/// Returns what to tell the user, or nothing.
std::string restore_float8_history(Float8History* history, const at::Tensor& saved, bool is_of_same_weights);

/// Repeats a forward pass of this thread with the scales that it had: for its lifetime, `history` gives those. A null history
/// changes nothing.
class UseFloat8Scales {
 public:
  UseFloat8Scales(const Float8History* history, Float8History::Scales scales);
  ~UseFloat8Scales();
  UseFloat8Scales(const UseFloat8Scales&) = delete;
  UseFloat8Scales& operator=(const UseFloat8Scales&) = delete;

 private:
  const Float8History* history_before_;
  Float8History::Scales scales_before_;
};

}  // namespace apex::amp::detail
