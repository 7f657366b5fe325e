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

/// Finds where a program's training breaks at an opt level, and what of it has to stay in FP32 for it to train.
///
/// The program is a function that builds its model and optimizer, initializes them at the level that it is given, and trains
/// for as long as the run wants:
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
/// It is called many times, each time with the default generators seeded alike, and has to do the same whenever it is told the
/// same level: weights from those generators, or from a file, and batches by the number of the step.
///
/// Every run begins sessions of its own by `initialize`; afterwards there is none, as after `amp::reset`. Runs are made one
/// after the other on the calling thread; a step that is observed keeps copies of all its activations and gradients, three
/// times over. For CPU and CUDA tensors; waits for the device. Errors are those of the program.
class Doctor {
 public:
  using Program = std::function<void(const OptLevel& level, DoctorRun& run)>;

  /// Errors: RuntimeError for an unknown level; ValueError for options that say so.
  Doctor(const OptLevel& level, Program program, const DoctorOptions& options = {});
  ~Doctor();

  /// The first call of the first training step that is to blame; where there is none, that of the step in which the level's
  /// training is lost, if it is, or the weight that an optimizer made Inf or NaN before it. With a dynamic loss scale the
  /// gradients are looked at with the largest power of four, from 2^16 down to 1, with which they do not overflow. Errors:
  /// RuntimeError where training at the reference level is lost.
  Divergence first_divergence();

  /// The level, with the fewest modules and operators that delta debugging finds in `float32_modules` and `float32_functions`,
  /// so that no call of the first step diverges, and the loss gets to where it does at the reference level, within its spread
  /// over seeds and by rounding errors. Without any one of them it does not. Errors: RuntimeError where keeping everything in
  /// FP32 is not enough, and where training at the reference level is lost.
  OptLevel minimal_float32();

 private:
  std::unique_ptr<detail::Diagnosis> consultation_;
};

}  // namespace apex::amp
