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

/// A level's first divergence, and the level's step in which it is; the first step where there is none.
struct Finding {
  LocatedDivergence verdict;
  ObservedStep step;
};

/// Runs a program at levels of one 16-bit type and compares them with the reference, whose runs it keeps.
class LevelTrials {
 public:
  LevelTrials(DoctorProgram program, DoctorOptions options);

  /// In the first step; then, if training at the level is lost in a later one, in that. Errors: RuntimeError where the program
  /// does not train at the reference level, which says nothing about others then.
  Finding find(const OptLevel& level);
  Finding find_in_step(const OptLevel& level, int64_t step);
  /// Whether no call of the first step diverges, and the loss gets, in `options.steps` steps, to where it does at the reference
  /// level with any of the seeds, or as far above the worst of them as that is above the best, or as rounding alone takes it.
  bool trains(const OptLevel& level);

 private:
  struct Reference {
    ObservedStep step, control;
  };
  RunRecord run(const OptLevel& level, const RunRecord& plan, uint64_t seed);
  /// `disturb`: from weights that are some rounding errors of this type off.
  RunRecord train(const OptLevel& level, uint64_t seed, std::optional<c10::ScalarType> disturb = std::nullopt);
  /// At the reference level with each of the first `seeds` seeds. Errors: RuntimeError where such a run is lost.
  void train_references(int64_t seeds);
  /// With the loss scale and the 16-bit type of the level that is compared with it.
  const Reference& reference_at(int64_t step, double loss_scale, c10::ScalarType low_type);
  RunRecord observe(const OptLevel& level, int64_t step);
  /// Whether a run still trains that comes to this loss, averaged over the last quarter of the first `steps` steps.
  bool is_low_enough(double loss, size_t steps, c10::ScalarType low_type);
  /// Of the loss, averaged so, by rounding errors of the 16-bit type.
  double spread_by_rounding(size_t steps, double loss, c10::ScalarType low_type);
  /// At the reference level from disturbed weights; those of the reference itself where such a run is lost.
  const std::vector<double>& disturbed_losses(c10::ScalarType low_type);

  DoctorProgram program_;
  DoctorOptions options_;
  OptLevel reference_level_;
  std::map<std::pair<int64_t, double>, Reference> references_;  // by step and loss scale
  std::vector<std::vector<double>> reference_losses_;           // of each seed
  std::optional<std::vector<double>> disturbed_losses_;
};

/// What `amp::Doctor` does with one level.
class Diagnosis {
 public:
  Diagnosis(OptLevel level, DoctorProgram program, const DoctorOptions& options)
      : level_(std::move(level)), trials_(std::move(program), options) {}

  const Finding& finding();
  OptLevel minimal_float32();

 private:
  /// Follows one divergence after the other, and keeps in FP32 what is blamed.
  Fp32Rules guess();
  /// All that could be kept. Errors: RuntimeError where that does not train.
  Fp32Rules all();

  OptLevel level_;
  LevelTrials trials_;
  std::optional<Finding> finding_;
};

}  // namespace apex::amp::detail
