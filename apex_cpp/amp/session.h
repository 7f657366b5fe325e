#pragma once

#include <cstdint>

#include "opt_levels/properties.h"

namespace apex::amp {

class LossScaler;

/// Drops the 16-bit copies of weights that O1 and O4 cache within an iteration. amp already drops them at both ends of
/// `scale_loss` blocks, at steps, `zero_grad` and the end of evaluations, and keeps beyond a forward pass only those of
/// weights that its own optimizers train. A handle's forward begins with the present weights, whoever wrote them. At O1
/// and O4 a program needs this call in two cases only: a forward pass writes through `tensor.data()` to a weight that
/// it has used and will use again; or the program writes so to trained weights that the iteration has used already, and
/// then calls the *original* model, with gradients.
///
/// At O2, O5 and O6 the next step also compares all weights with their FP32 masters, and copies values written through
/// `tensor.data()` into the masters, unless the program has written the master itself since the last step and the weight shows
/// no write. Such writes do not change the version counter: on a CPU amp compares 128 values of each
/// weight, which detects most of them; on a GPU they need this call. Writes to the parameters themselves (`weight.clamp_(…)` or
/// `copy_` under a `torch::NoGradGuard`, `set_data`) are always detected. Reaches the models and optimizers of the
/// newest `initialize` alone: write to the parameters themselves in others. No synchronisation. Errors: RuntimeError
/// before `initialize`.
void clear_cast_cache();

/// The properties of the newest `initialize` call, with overrides. Errors: RuntimeError before it.
const opt_levels::Properties& properties();

/// The loss scaler of a loss, `loss_id` in [0, num_losses). Errors: RuntimeError before `initialize` or after one with
/// `enabled` false, IndexError out of range.
LossScaler& loss_scaler(int64_t loss_id = 0);

/// The number of loss scalers: `num_losses`, or 0 after `initialize` with `enabled` false. Errors: RuntimeError before it.
int64_t num_loss_scalers();

/// Discards the newest `initialize`: `loss_scaler`, `state_dict` and `properties` then need a new one, and threads no
/// longer cast. Existing handles keep working with their own scalers and casts, also in `scale_loss(loss, handle)`.
void reset();

}  // namespace apex::amp
