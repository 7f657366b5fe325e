#pragma once

#include <apex_cpp/amp/checkpoint/parts.h>
#include <apex_cpp/amp/step_result.h>
#include "opt_levels/opt_level.h"

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace apex::amp {

/// When training counts as diverged.
struct DivergenceOptions {
  /// Number of skipped steps in a row. Each of them halves a loss scale that was too high.
  TORCH_ARG(int, patience) = 50;
  /// Training has diverged if a step is skipped at this loss scale or a lower one. (fairseq: --min-loss-scale.)
  TORCH_ARG(double, lowest_loss_scale) = 1e-4;
};

/// Detects that training has diverged, from the loss and the result of each step. A step that was taken with a loss of Inf or
/// NaN has ruined the parameters; a skipped step has not. Many skipped steps in a row, or a skipped step at a very low loss
/// scale, show that the loss scale is not the cause.
class DivergenceDetector {
 public:
  /// Errors: ValueError for a patience below 1, and for a lowest_loss_scale that is negative or not finite.
  explicit DivergenceDetector(const DivergenceOptions& options = {});

  /// Evaluates one step. `step` is the program's own count. `loss` is unscaled; with several processes it is the same on each,
  /// such as the mean. Returns true once training has diverged.
  bool update(int64_t step, double loss, const StepResult& result);

  bool diverged() const { return !reason_.empty(); }
  /// The reason: "the loss became nan at step 7". Empty if training has not diverged.
  const std::string& reason() const { return reason_; }
  /// Number of skipped steps since the last step that was taken.
  int skipped_in_a_row() const { return skipped_in_a_row_; }

 private:
  DivergenceOptions options_;
  int skipped_in_a_row_ = 0;
  std::string reason_;
};

using opt_levels::levels_above;
using opt_levels::OptLevel;

/// One move of training to another level.
struct LevelClimb {
  OptLevel from, to;
  int64_t diverged_at = 0;  // the step
  std::string reason;
};

/// Recovers from divergence: the program goes back to its last checkpoint and continues at the next level with more FP32.
/// Models and optimizers are created anew for each level, in a loop around the program's training:
///
///   const bool resumes = std::filesystem::exists(path);        // the program was started again
///   amp::LevelFallback fallback(resumes ? amp::OptLevel::from_yaml_file("run.yaml") : amp::OptLevel::named("O3"));
///   do {
///     Net model;
///     torch::optim::SGD optimizer(model->parameters(), 0.1);
///     auto [net, opt] = amp::initialize(model, optimizer, fallback.level());
///     std::ofstream("run.yaml") << fallback.level().to_yaml();
///     int64_t step = 0;
///     if (resumes || fallback.has_climbed()) step = amp::load_checkpoint(path, net, opt).metadata.at("step").to_int();
///     else amp::save_checkpoint(path, net, opt, {{"step", 0}});
///     while (step < steps && !fallback.diverged()) {
///       …                                                      // the batch of `step`, backward, opt.step()
///       fallback.update(++step, loss.item<double>(), amp::step_result(opt));
///       if (step % 100 == 0 && fallback.is_good(net, opt)) amp::save_checkpoint(path, net, opt, {{"step", step}});
///     }
///   } while (fallback.climb());
///
/// A checkpoint restores weights (all 32 bits if there were master weights), optimizer state and random number generators,
/// bitwise. The program stores its other state, such as its position in the data, in the metadata. With several processes, each
/// process has a LevelFallback of its own; equal losses make all of them climb together.
class LevelFallback {
 public:
  /// Starts at `level`. `further` lists the levels to continue at, in order.
  LevelFallback(OptLevel level, std::vector<OptLevel> further, const DivergenceOptions& options = {});
  explicit LevelFallback(const OptLevel& level, const DivergenceOptions& options = {})
      : LevelFallback(level, levels_above(level), options) {}

  /// The level to train at now.
  const OptLevel& level() const { return level_; }
  bool has_climbed() const { return !climbs_.empty(); }
  const std::vector<LevelClimb>& climbs() const { return climbs_; }

  /// Call it after each step. As `DivergenceDetector::update`.
  bool update(int64_t step, double loss, const StepResult& result);
  bool diverged() const { return !reason_.empty(); }
  const std::string& reason() const { return reason_; }
  /// Reports that training has diverged, for a reason that the program has found. An earlier reason stays. Errors: ValueError
  /// for an empty reason.
  void give_up(const std::string& reason);

  /// True if the current state is fit for a checkpoint: training has not diverged, fewer than ten steps in a row were skipped,
  /// parameters that require gradients and optimizer state are finite, and no other parameter or buffer holds NaN (a mask may
  /// hold Inf). If a value fails this check, training has diverged: the loss would show it one step later. Optimizer state that
  /// is sharded over processes is not checked. With several processes every process calls it, after buffers have been
  /// synchronised. `models` and `optimizers`: as for `save_checkpoint`. Waits for the devices; copies optimizer state to the
  /// CPU.
  template <class Models, class Optimizers>
  bool is_good(const Models& models, const Optimizers& optimizers) {
    return is_good(detail::parts_of<detail::SavedParts>(models, optimizers));
  }

  /// If training has diverged and a further level is left: moves to that level, resets the divergence, prints a line to
  /// standard output and returns true. Otherwise returns false.
  bool climb();

 private:
  bool is_good(const detail::SavedParts& parts);

  OptLevel level_;
  std::vector<OptLevel> further_;
  DivergenceOptions options_;
  DivergenceDetector detector_;
  int64_t step_ = 0;
  std::string reason_;
  std::vector<LevelClimb> climbs_;
};

}  // namespace apex::amp
