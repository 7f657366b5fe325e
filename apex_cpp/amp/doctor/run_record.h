#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <apex_cpp/amp/doctor/observed_step.h>
#include <apex_cpp/amp/doctor/step_observer.h>

namespace apex::amp::detail {

/// What many operators' rounding errors come to, in those of one.
inline constexpr double kRoundingErrors = 4;

/// What a run is to do, and what it did.
struct RunRecord {
  // To do.
  int64_t steps = 1;
  int64_t observed_step = -1;                      // -1: none
  std::optional<c10::ScalarType> disturb_weights;  // by some rounding errors of this type, before the first step

  // Done.
  int64_t step = -1;
  std::vector<double> losses;  // of each step
  bool has_loss = false;       // whether the last step was told any
  std::vector<bool> skipped;   // whether an overflow had each step skipped
  ObservedStep observed;
  std::shared_ptr<StepObserver> observer;

  /// Whether the run has come to an end that more steps would not change.
  bool is_lost() const;
  /// What a run that is lost came to: "the loss is nan".
  std::string how_it_was_lost() const;
};

}  // namespace apex::amp::detail
