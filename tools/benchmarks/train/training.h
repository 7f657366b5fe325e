#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "network.h"
#include "way.h"

namespace bench::train {

/// Where a step can be looked at. What autograd has saved is alive once the forward pass and the loss are done, and the model's
/// gradients are complete, scaled ones too, once the backward pass is.
enum class Point { gradients_dropped, forward_done, backward_done };
using Observer = std::function<void(Point)>;

/// One network in training.
class Training {
 public:
  virtual ~Training() = default;
  /// zero_grad, forward, loss, backward, optimizer.
  virtual void step(const Batch& batch, const Observer& reached) = 0;
  /// Of the model, in the types in which the way keeps them.
  virtual std::vector<at::Tensor> parameters() const = 0;
  virtual std::vector<at::Tensor> buffers() const = 0;
  /// That of the last step; 1 where there is none.
  virtual double loss_scale() = 0;
};

/// Casts stay as the way leaves them for the calling thread.
std::unique_ptr<Training> start(const Way& way, Network network);

}  // namespace bench::train
