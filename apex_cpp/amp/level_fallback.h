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
  /// So many steps skipped in a row. A loss scale that was too high is halved by each of them.
  TORCH_ARG(int, patience) = 50;
  /// A step skipped at this loss scale or a lower one. (fairseq: --min-loss-scale.)
  TORCH_ARG(double, lowest_loss_scale) = 1e-4;
};

/// Tells when going on is pointless, from the loss and what became of each step. A loss that is Inf or NaN and whose step was
/// taken has ruined the parameters; one that was skipped has not, but if step after step is skipped, or steps are skipped at
/// hardly any loss scale, the scale is not what is wrong.
class DivergenceDetector {
 public:
  /// Errors: ValueError for a patience below 1, and a lowest_loss_scale that is negative or not finite.
  explicit DivergenceDetector(const DivergenceOptions& options = {});

  /// Looks at one step, `step` by the program's own count. `loss`: unscaled; of several processes the same on each, such as
  /// the mean. True once training has diverged.
  bool update(int64_t step, double loss, const StepResult& result);

  bool diverged() const { return !reason_.empty(); }
  /// Why, in words: "the loss became nan at step 7". Empty while all is well.
  const std::string& reason() const { return reason_; }
  /// Steps skipped since the last that was taken.
  int skipped_in_a_row() const { return skipped_in_a_row_; }

 private:
  DivergenceOptions options_;
  int skipped_in_a_row_ = 0;
  std::string reason_;
};

using opt_levels::levels_above;
using opt_levels::OptLevel;

/// One time that training left a level.
struct LevelClimb {
  OptLevel from, to;
  int64_t diverged_at = 0;  // step
  std::string reason;
};

/// Training that heals itself: where it diverges, the program goes back to its last checkpoint and on at the next level with
/// more FP32. Models and optimizers are made anew for each level, so that this is a loop around what the program has anyway:
///
///   amp::LevelFallback fallback("O3");
///   do {
///     Net model;
///     torch::optim::SGD optimizer(model->parameters(), 0.1);
///     auto [net, opt] = amp::initialize(model, optimizer, fallback.level());
///     int64_t step = 0;
///     if (fallback.has_climbed()) step = amp::load_checkpoint(path, net, opt).metadata.at("step").to_int();
///     else amp::save_checkpoint(path, net, opt, {{"step", 0}});
///     while (step < steps && !fallback.diverged()) {
///       …                                                      // the batch of `step`, backward, opt.step()
///       fallback.update(++step, loss.item<double>(), amp::step_result(opt));
///       if (step % 100 == 0 && fallback.is_good(net, opt)) amp::save_checkpoint(path, net, opt, {{"step", step}});
///     }
///   } while (fallback.climb());
///
/// A checkpoint brings back, bitwise, weights (all 32 bits where there were masters), optimizer state and random numbers; what
/// the program has beside them, such as its place in the data, it keeps in the metadata. Of several processes each has a
/// LevelFallback; given the same losses they climb together.
class LevelFallback {
 public:
  /// Starts at `level`. `further`: where to go on, one after the other.
  LevelFallback(OptLevel level, std::vector<OptLevel> further, const DivergenceOptions& options = {});
  explicit LevelFallback(const OptLevel& level, const DivergenceOptions& options = {})
      : LevelFallback(level, levels_above(level), options) {}

  /// To train at now.
  const OptLevel& level() const { return level_; }
  bool has_climbed() const { return !climbs_.empty(); }
  const std::vector<LevelClimb>& climbs() const { return climbs_; }

  /// After each step; as `DivergenceDetector::update`.
  bool update(int64_t step, double loss, const StepResult& result);
  bool diverged() const { return !reason_.empty(); }
  const std::string& reason() const { return reason_; }
  /// Training has diverged for a reason that the program has found; an earlier reason stays. Errors: ValueError for an empty
  /// one.
  void give_up(const std::string& reason);

  /// Whether what is there now is fit to come back to. Training has not diverged; fewer than ten steps in a row were skipped;
  /// parameters that require gradients and optimizer state are finite, and no other parameter or buffer holds NaN (a mask may
  /// hold Inf). Where a number is not, training has diverged: the loss would show it a step later. State that is spread over
  /// processes is not looked at; of several processes all ask, after they have given each other the buffers. `models` and
  /// `optimizers`: as `save_checkpoint` takes them. Waits for the devices; copies optimizer state to the CPU.
  template <class Models, class Optimizers>
  bool is_good(const Models& models, const Optimizers& optimizers) {
    detail::SavedParts parts;
    detail::add_models(parts, models);
    detail::add_optimizers(parts, optimizers);
    return is_good(parts);
  }

  /// True where training has diverged and there is a level to go on at: `level` is that one then, and nothing has diverged.
  /// Says so in a line on standard output.
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
