#pragma once

#include <apex_cpp/amp/doctor/step_observer.h>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace apex::amp {

/// What `Doctor` compares, how long it trains for it, and what it takes for agreement.
struct DoctorOptions {
  /// The level that the other is compared with.
  TORCH_ARG(std::string, reference) = "O0";
  /// Steps for which the search trains.
  TORCH_ARG(int64_t, steps) = 50;
  /// Seeds of the reference's training runs, from `seed` on: at least 2, since their spread says what is good enough.
  TORCH_ARG(int64_t, seeds) = 3;
  /// Of the default generators at the beginning of each run.
  TORCH_ARG(uint64_t, seed) = 0;
  /// Ratios of signal to noise, in dB, that tensors of the forward pass, and gradients, have to reach.
  TORCH_ARG(double, min_sqnr) = 20;
  TORCH_ARG(double, min_gradient_sqnr) = 6;
  /// Called before each run with what it is for, to show how far the doctor is.
  TORCH_ARG(std::function<void(const std::string&)>, on_run);
};

}  // namespace apex::amp

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

namespace apex::amp {

namespace detail {
struct RunRecord;
}

/// One run of a training program for `amp::Doctor`, which decides how long it is and looks at what the program does.
class DoctorRun {
 public:
  /// For the doctor: what to do, and where to note what happened.
  explicit DoctorRun(std::shared_ptr<detail::RunRecord> record);
  ~DoctorRun();
  DoctorRun(const DoctorRun&) = delete;
  DoctorRun& operator=(const DoctorRun&) = delete;

  /// Begins the next step; false: the run is to end. To be called after `initialize`, before each step's first forward pass.
  /// Errors: RuntimeError where the step before was not told its loss.
  bool next();
  /// The number of the step that has begun, from 0: which batch is due.
  int64_t step() const;
  /// Takes the step's loss, unscaled, of one element; of several losses their sum counts. Waits for the device.
  void loss(const at::Tensor& loss);
  void loss(double loss);

 private:
  void begin();
  void end();

  std::shared_ptr<detail::RunRecord> record_;
};

}  // namespace apex::amp
