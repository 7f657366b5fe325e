#pragma once

#include <apex_cpp/amp/doctor/divergence.h>
#include <apex_cpp/amp/doctor/doctor_run.h>
#include <apex_cpp/amp/doctor/fp32_rules.h>
#include <apex_cpp/amp/doctor/step_observer.h>
#include "opt_levels/opt_level.h"

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace apex::amp::detail {

using opt_levels::OptLevel;
using DoctorProgram = std::function<void(const OptLevel& level, DoctorRun& run)>;

/// A level's first divergence, and the observed step that contains it; the first step if there is no divergence.
struct Finding {
  LocatedDivergence located;
  ObservedStep step;
};

/// Runs a program at levels of one 16-bit type and compares them with the reference level. Keeps the runs at the reference
/// level.
class LevelTrials {
 public:
  LevelTrials(DoctorProgram program, DoctorOptions options);

  /// Searches the first step. If that step has no divergence and training fails later, searches the failing step and the step
  /// before it. Errors: RuntimeError if training fails at the reference level, because a comparison then means nothing.
  Finding find(const OptLevel& level);
  Finding find_in_step(const OptLevel& level, int64_t step);
  /// True if no call of the first step diverges, at least half of `options.steps` steps are taken, and the loss gets low
  /// enough: at most the highest loss of the reference's seeds plus the larger of two spreads, the one over seeds and the one
  /// by rounding errors.
  bool trains(const OptLevel& level);

 private:
  struct Reference {
    ObservedStep step, control;
  };
  RunRecord run(const OptLevel& level, const RunRecord& plan, uint64_t seed);
  /// `perturb`: perturbs the initial weights by rounding errors of this type.
  RunRecord train(const OptLevel& level, uint64_t seed, std::optional<c10::ScalarType> perturb = std::nullopt);
  /// Trains at the reference level with each of the first `seeds` seeds. Errors: RuntimeError if one of these runs fails.
  void train_references(int64_t seeds);
  /// The reference with the loss scale and the 16-bit type of the level that is compared with it.
  const Reference& reference_at(int64_t step, double loss_scale, c10::ScalarType low_type);
  RunRecord observe(const OptLevel& level, int64_t step);
  /// True if `loss`, the mean over the last quarter of the first `steps` steps, is low enough.
  bool is_low_enough(double loss, size_t steps, c10::ScalarType low_type);
  /// How far rounding errors of the 16-bit type move this mean loss.
  double spread_by_rounding(size_t steps, double loss, c10::ScalarType low_type);
  /// Losses at the reference level from perturbed weights; the losses from unperturbed weights if the perturbed run fails.
  const std::vector<double>& perturbed_losses(c10::ScalarType low_type);

  DoctorProgram program_;
  DoctorOptions options_;
  OptLevel reference_level_;
  std::map<std::pair<int64_t, double>, Reference> references_;  // by step and loss scale
  std::vector<std::vector<double>> reference_losses_;           // one vector for each seed
  std::optional<std::vector<double>> perturbed_losses_;
};

/// The implementation of `amp::Doctor` for one level.
class Diagnosis {
 public:
  Diagnosis(OptLevel level, DoctorProgram program, const DoctorOptions& options)
      : level_(std::move(level)), trials_(std::move(program), options) {}

  const Finding& finding();
  OptLevel minimal_float32();

 private:
  /// For a level with FP8 that trains without it: the fewest modules that must stay in bfloat16, or the level without FP8 if
  /// products without a module are what fails.
  OptLevel minimal_bfloat16();
  /// Follows one divergence after another, and returns the rules that keep each divergent call in FP32.
  Fp32Rules follow_divergences();
  /// Rules for everything that can stay in FP32. Errors: RuntimeError if the level does not train with these rules either.
  Fp32Rules all_rules();

  OptLevel level_;
  LevelTrials trials_;
  std::optional<Finding> finding_;
};

}  // namespace apex::amp::detail
