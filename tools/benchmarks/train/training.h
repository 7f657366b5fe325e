#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "network.h"
#include "way.h"

namespace bench::train {

/// Points at which an observer runs. After the forward pass and the loss, everything that autograd saved is alive; after the
/// backward pass, the model's gradients, possibly scaled, are complete.
enum class Point { gradients_dropped, forward_done, backward_done };
using Observer = std::function<void(Point)>;

/// One network in training.
class Training {
 public:
  virtual ~Training() = default;
  /// zero_grad, forward, loss, backward, optimizer.
  virtual void step(const Batch& batch, const Observer& reached) = 0;
  /// The model's parameters, in the dtypes that the way uses.
  virtual std::vector<at::Tensor> parameters() const = 0;
  virtual std::vector<at::Tensor> buffers() const = 0;
  /// The loss scale of the last step; 1 if there is none.
  virtual double loss_scale() = 0;
};

/// Starts training. The calling thread keeps the way's casts.
std::unique_ptr<Training> start(const Way& way, Network network);

}  // namespace bench::train
