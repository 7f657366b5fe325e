#pragma once

#include <c10/util/Exception.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <string>

namespace torch::serialize {
class OutputArchive;
class InputArchive;
}  // namespace torch::serialize

namespace apex::amp {

/// What is saved of one loss scaler.
struct LossScalerState {
  double loss_scale = 1.0;
  int64_t unskipped = 0;
};

/// "loss_scaler0", "loss_scaler1", … in order (SD-01). `torch::save` and `torch::load` take it.
class StateDict : public torch::OrderedDict<std::string, LossScalerState> {
 public:
  using torch::OrderedDict<std::string, LossScalerState>::OrderedDict;
};

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const StateDict& state);
/// Errors: c10::Error if the archive holds no amp state.
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, StateDict& state);

/// The loss scalers' states of the newest `initialize`. Host data, no synchronisation. Errors: RuntimeError before `initialize`
/// with amp enabled. Apex: `amp.state_dict`.
StateDict state_dict();

/// Restores loss scalers by position: the n-th key that contains "loss_scaler" fills the n-th scaler, whatever its digits
/// (SD-04). Prints a line where the number of entries differs; surplus entries are left out (SD-03, SD-05). A scaler with a
/// static scale keeps it, and where the saved scale is another one, says so on standard output; Apex would train at the saved
/// scale and look for no overflow. Steps that were to be skipped after an overflow are not skipped any more: the gradients of
/// their optimizers are dropped instead. No synchronisation.
/// Errors: RuntimeError before `initialize` with amp enabled; ValueError for a scale that is not finite and positive, before
/// anything is changed; RuntimeError naming all other keys, after the valid ones have been applied (SD-06).
/// Apex: `amp.load_state_dict`.
void load_state_dict(const StateDict& state);

}  // namespace apex::amp
