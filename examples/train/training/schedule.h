#pragma once

#include <cstdint>
#include <memory>

#include <apex_cpp/lr_scheduler.h>

#include "config/config.h"

namespace train {

/// The scheduler that the config names, to be stepped after every step of training, with the rate of step `step` (from 0,
/// counted over all epochs): a linear warm-up over `warmup_epochs`, and around it nothing, a factor `gamma` every
/// `step_epochs`, half a cosine or a line from `optimizer.lr` to `final_lr` at the last epoch's end, or a polynomial that ends
/// in 0; or one cycle up to `optimizer.lr` and down. It sets the optimizer's rates, and momentum where it cycles, whatever they
/// are, so a resumed run needs no state for it. Throws UserError for a cycle without a step in which the rate rises.
std::unique_ptr<apex::lr_scheduler::LRScheduler> make_schedule(const Config& config, torch::optim::Optimizer& optimizer,
                                                               int64_t step, int64_t steps_per_epoch);

}  // namespace train
