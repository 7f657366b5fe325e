#pragma once

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/comparison/measurement.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "training.h"

namespace bench::train {

/// Memory of one contender, in bytes.
struct Footprint {
  int64_t weights = 0;      // the model's parameters and buffers
  int64_t gradients = 0;    // the model's, after the backward pass
  int64_t activations = 0;  // allocated in the forward pass and kept for the backward pass, including 16-bit copies
  int64_t held = 0;         // alive after a step: weights, masters, gradients, optimizer state
  int64_t peak = 0;         // maximum alive within a step, the first excluded; 0 if there was only one step

  int64_t of_model() const { return weights + gradients + activations; }
};

/// A network in training that shares a thread with others. Each turn restores the casts of its previous turn and afterwards
/// restores the thread's.
class Contender {
 public:
  /// All contenders are built from the same seed, on `device`. Takes no step yet.
  Contender(const Task& task, Way way, at::Device device, bool quick);

  const Way& way() const { return way_; }
  /// Takes one step and returns its nanoseconds, including a GPU's work.
  double step();
  /// A step that also records the footprint.
  double counted_step();
  const Footprint& footprint() const { return footprint_; }
  /// For each `step`, the nanoseconds after the backward pass: the end of the scale_loss block and the optimizer's step. On a
  /// GPU, which lags behind the host, this includes the rest of the backward pass.
  const std::vector<double>& updates() const { return updates_; }
  double loss_scale() const { return training_->loss_scale(); }

 private:
  class Turn;

  double timed(const Observer& reached);
  void look(Point point);

  Way way_;
  Batch batch_;
  std::shared_ptr<apex::amp::detail::TensorMemory> memory_ = std::make_shared<apex::amp::detail::TensorMemory>();
  std::optional<apex::amp::detail::SavedCasts> casts_;  // none before the first turn
  std::unique_ptr<Training> training_;
  Footprint footprint_;
  std::vector<double> updates_;
  int64_t live_before_forward_ = 0;
  bool has_stepped_ = false;
};

}  // namespace bench::train
