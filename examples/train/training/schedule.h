#pragma once

#include "config/config.h"

namespace train {

/// The learning rate of step `step` (from 0, counted over all epochs): a linear warm-up over `warmup_epochs`, and around it
/// nothing, a factor `gamma` every `step_epochs`, or half a cosine from `optimizer.lr` to `final_lr` at the last epoch's end.
/// A function of the step alone, so a resumed run needs no state for it.
double learning_rate(const Config& config, int64_t step, int64_t steps_per_epoch);

}  // namespace train
