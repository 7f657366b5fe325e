#pragma once

#include <cstdint>

#include "opt_levels/properties.h"

namespace apex::amp {

class LossScaler;

/// Drops the 16-bit copies of weights that O1 and O4 keep within an iteration. amp does so itself at both ends of `scale_loss`
/// blocks, at steps, `zero_grad` and the end of evaluations, and keeps copies only of what its own optimizers train; a handle's
/// forward sees every write to a weight. A program needs this for them in one case alone: it writes through `tensor.data()` to
/// weights that an optimizer handle trains, between two forward passes of the *original* model, with gradients, in one
/// iteration.
///
/// At O2 and O5 it also has the next step compare all weights with their FP32 masters, and take into these what was written
/// through `tensor.data()`. That leaves no trace: on a CPU a sample of 128 values of each weight shows most such writes, on a
/// GPU this call alone. Writes to the parameters themselves (`weight.clamp_(…)` or `copy_` under a `torch::NoGradGuard`,
/// `set_data`) are seen without it. No synchronisation. Errors: RuntimeError before `initialize`.
void clear_cast_cache();

/// Properties in force after the newest `initialize`. Errors: RuntimeError before it.
const opt_levels::Properties& properties();

/// Scaler of one loss, `loss_id` in [0, num_losses). Errors: RuntimeError before `initialize` and where it was given
/// `enabled` false, IndexError out of range.
LossScaler& loss_scaler(int64_t loss_id = 0);

/// Number of loss scalers: `num_losses`, or 0 where amp was initialized with `enabled` false. Errors: as `properties`.
int64_t num_loss_scalers();

/// Forgets the newest `initialize`: `scale_loss` and `state_dict` ask for a new one, and threads cast no more. Handles made
/// before keep working with the scalers and the casts they were made with.
void reset();

}  // namespace apex::amp
