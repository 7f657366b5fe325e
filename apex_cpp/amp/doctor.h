#pragma once

#include <functional>
#include <memory>

#include <apex_cpp/amp/doctor/divergence.h>
#include <apex_cpp/amp/doctor/doctor_run.h>

#include "opt_levels/opt_level.h"

namespace apex::amp {

using opt_levels::OptLevel;

namespace detail {
class Diagnosis;
}

/// Finds where training breaks at an opt level, and which modules and operators must stay in FP32 for training to work.
///
/// The program is a function that builds its model and optimizer, initializes them at the given level, and trains until
/// `run.next()` returns false:
/// ```
/// amp::Doctor doctor("O2", [&](const amp::OptLevel& level, amp::DoctorRun& run) {
///   Net model;
///   torch::optim::SGD optimizer(model->parameters(), 0.1);
///   auto [net, opt] = amp::initialize(model, optimizer, level);
///   while (run.next()) {
///     auto [x, y] = batch(run.step());
///     opt.zero_grad();
///     auto loss = criterion(net->forward(x), y);
///     {
///       auto scaled_loss = amp::scale_loss(loss, opt);
///       scaled_loss.backward();
///     }
///     opt.step();
///     run.loss(loss);
///   }
/// });
/// std::cout << doctor.first_divergence() << "\n";
/// std::ofstream("o2.yaml") << doctor.minimal_float32().to_yaml();
/// ```
/// The doctor calls the program many times and seeds the default generators before each call. The same level and seed must give
/// the same run: draw the weights from the default generators or load them from a file, and choose the batch by the step index.
///
/// Every run starts its own session with `initialize`. After a run there is no session, as after `amp::reset`. Runs follow one
/// another on the calling thread. An observed step copies all its activations and gradients. The doctor keeps two copies of
/// such a step for each step and loss scale at which it compares, and up to three others at a time. The backward pass of
/// `apex::checkpoint` is not observed: leave it out of the program. Takes CPU and CUDA tensors; waits for the device. Errors of
/// the program are passed on.
class Doctor {
 public:
  using Program = std::function<void(const OptLevel& level, DoctorRun& run)>;

  /// Errors: RuntimeError for an unknown level; ValueError for `steps` below 1 or `seeds` below 2.
  Doctor(const OptLevel& level, Program program, const DoctorOptions& options = {});
  ~Doctor();

  /// Returns the first divergent call of the first training step. If that step has none and training fails in a later step,
  /// returns the first divergent call of the failing step or of the step before it, or the weight in which an optimizer left
  /// Inf or NaN. With a dynamic loss scale, gradients are compared at the largest power of four, from 2^16 down to 1, at which
  /// they do not overflow. Errors: RuntimeError if training fails at the reference level.
  Divergence first_divergence();

  /// Returns the level with the fewest entries in `float32_modules` and `float32_functions` that delta debugging finds, such
  /// that no call of the first step diverges and the loss gets as low as at the reference level, within the reference's spread
  /// over seeds or by rounding errors. Without any one of these entries the level fails. A level with FP8 (O6) that trains
  /// without FP8 gets entries in `bfloat16_modules` instead; it loses FP8 if its products without a parameter are what fails.
  /// Errors: RuntimeError if training fails with everything in FP32 that the level can keep there, and if training fails
  /// at the reference level.
  OptLevel minimal_float32();

 private:
  std::unique_ptr<detail::Diagnosis> diagnosis_;
};

}  // namespace apex::amp
