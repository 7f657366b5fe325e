#pragma once
// IWYU pragma: private, include <apex_cpp/amp/doctor.h>

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

/// Which levels `Doctor` compares, how long it trains, and which differences it accepts.
struct DoctorOptions {
  /// The reference level, with which the other level is compared.
  TORCH_ARG(std::string, reference) = "O0";
  /// Steps of a training run.
  TORCH_ARG(int64_t, steps) = 50;
  /// Number of training runs at the reference level, with seeds from `seed` on. At least 2: their spread decides which loss is
  /// low enough.
  TORCH_ARG(int64_t, seeds) = 3;
  /// First seed of the default generators.
  TORCH_ARG(uint64_t, seed) = 0;
  /// Minimum signal-to-noise ratios in dB of tensors in the forward pass, and of gradients. At a level with FP8, whose factors
  /// have 3 bits of mantissa, the former is at most 10.
  TORCH_ARG(double, min_sqnr) = 20;
  TORCH_ARG(double, min_gradient_sqnr) = 6;
  /// Called before each run with the purpose of the run, to show progress.
  TORCH_ARG(std::function<void(const std::string&)>, on_run);
};

namespace detail {

/// Rounding error of many operators together, as a multiple of one operator's rounding error.
inline constexpr double kRoundingErrors = 4;

/// The largest minimum, in dB, of tensors in the forward pass at a level with FP8. A product of two factors in E4M3 has 25 to
/// 28; the noise of ten of them in a row adds up.
inline constexpr double kFloat8Sqnr = 10;

/// The plan of a run, and its results.
struct RunRecord {
  // The plan.
  int64_t steps = 1;
  int64_t observed_step = -1;                      // -1: none
  std::optional<c10::ScalarType> perturb_weights;  // type whose rounding errors perturb the weights

  // The results.
  int64_t step = -1;
  std::vector<double> losses;  // one for each step
  bool has_loss = false;       // whether the program passed a loss for the last step
  std::vector<bool> skipped;   // for each step: whether an overflow skipped it
  int64_t overflows = 0;       // before the last step
  ObservedStep observed;
  std::shared_ptr<StepObserver> observer;

  /// True if the run has failed: the last loss is not finite, or the last 20 steps were all skipped.
  bool has_failed() const;
  /// The reason why the run failed: "the loss is nan".
  std::string failure_reason() const;
};

}  // namespace detail

/// One run of a training program. `amp::Doctor` decides how long it is and observes its operator calls.
class DoctorRun {
 public:
  /// Called by `amp::Doctor`. `record` holds the plan and receives the results.
  explicit DoctorRun(std::shared_ptr<detail::RunRecord> record);
  ~DoctorRun();
  DoctorRun(const DoctorRun&) = delete;
  DoctorRun& operator=(const DoctorRun&) = delete;

  /// Begins the next step. Returns false if the run is to end. Call it after `initialize`, before the first forward pass of
  /// each step. Errors: RuntimeError if the program passed no loss for the previous step.
  bool next();
  /// Index of the current step, from 0. The program chooses the batch by it.
  int64_t step() const;
  /// Records the step's loss: unscaled, one element. Several losses of one step are added up. Waits for the device. Errors:
  /// ValueError for more elements, RuntimeError before `next`.
  void loss(const at::Tensor& loss);
  void loss(double loss);

 private:
  void begin();
  void end();

  std::shared_ptr<detail::RunRecord> record_;
};

}  // namespace apex::amp
