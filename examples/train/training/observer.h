#pragma once

#include <torch/optim/optimizer.h>

#include "models/network.h"

namespace train {

/// Looks on while a network trains, for tools that measure; called in the thread that trains. Work on a GPU may still be under
/// way.
class Observer {
 public:
  virtual ~Observer() = default;
  /// The batch is there; gradients are those of the step before.
  virtual void step_begins() {}
  virtual void loss_is_there() {}
  /// Unscaled, where the level scales the loss: in the parameters of `optimizer`, or in the model for one that unscales itself.
  /// A GradScaler unscales later.
  virtual void gradients_are_there(const torch::optim::Optimizer& /*optimizer*/) {}
  /// The optimizer has made its step, or skipped it.
  virtual void step_ends() {}
  /// After the last step, while its gradients are still there; the next one would be made with `loss_scale`. Of a run that
  /// climbs: at each of its levels.
  virtual void training_ends(Network& /*net*/, torch::optim::Optimizer& /*optimizer*/, double /*loss_scale*/) {}
};

}  // namespace train
