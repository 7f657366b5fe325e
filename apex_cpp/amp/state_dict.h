#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <string>

namespace torch::serialize {
class OutputArchive;
class InputArchive;
}  // namespace torch::serialize

namespace apex::amp {

/// The saved state of one loss scaler.
struct LossScalerState {
  double loss_scale = 1.0;
  int64_t unskipped = 0;
};

/// Loss scaler states under the keys "loss_scaler0", "loss_scaler1", … in order (SD-01), and with `fp8: delayed` the history of
/// the scales. Works with `torch::save` and `torch::load`.
class StateDict : public torch::OrderedDict<std::string, LossScalerState> {
 public:
  using torch::OrderedDict<std::string, LossScalerState>::OrderedDict;

  /// The largest magnitudes of FP8 operands in the last passes, at most 1024, oldest first: float32, [passes, weights, 3], for
  /// activation, weight and gradient of each weight's products. On the CPU. Undefined without `fp8: delayed`.
  at::Tensor float8_history;
};

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const StateDict& state);
/// Errors: c10::Error if an entry of the archive is not the state of a loss scaler.
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, StateDict& state);

/// The states of the newest session's loss scalers, and a copy of its FP8 history. Synchronises only
/// to copy a history from a GPU. Errors: RuntimeError
/// before `initialize` or after one with `enabled` false. Apex: `amp.state_dict`.
StateDict state_dict();

/// Restores loss scalers by position: the n-th key that contains "loss_scaler" fills the n-th scaler, whatever its digits
/// (SD-04). If the number of entries differs, prints a line and ignores surplus entries (SD-03, SD-05). A static scaler keeps
/// its scale, and prints a line if the saved scale differs; Apex would train at the saved scale without overflow checks.
/// With `fp8: delayed` also restores the history; a state without one leaves the model without a past, and prints a line.
/// Pending skips of steps after an overflow are cancelled; the gradients of these optimizers are dropped instead. No
/// synchronisation. Errors: RuntimeError before `initialize` or after one with `enabled` false; ValueError for
/// a scale that is not positive and finite in float32, or an FP8 history of another number of weights, before any change;
/// RuntimeError naming all unexpected keys, after the valid keys were applied (SD-06). Apex: `amp.load_state_dict`.
void load_state_dict(const StateDict& state);

}  // namespace apex::amp
