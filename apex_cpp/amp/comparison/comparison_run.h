#pragma once
// IWYU pragma: private, include <apex_cpp/amp/comparison.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace apex::amp {

/// One training run at one level, with its records for a comparison: time, loss and loss scale of each step, skipped steps,
/// memory, and the dtypes of weights, masters, gradients and operators.
///
/// `amp::Comparison` creates the runs itself. A program that trains at one level, which `tools/compare` starts once for each
/// level, creates its own run:
/// ```
/// amp::ComparisonRun run(options.steps);
/// auto [net, opt] = amp::initialize(model, optimizer, level);
/// while (run.next()) {
///   // … one step: forward, backward, opt.step()
///   run.loss(loss);
/// }
/// run.test_loss(validate(net));
/// run.write(options.out);
/// ```
/// Create the run before the model, on the thread that trains: memory is counted from there.
class ComparisonRun {
 public:
  /// A run of `steps` steps. Errors: ValueError if `steps` is below 1.
  explicit ComparisonRun(int64_t steps);
  ~ComparisonRun();
  ComparisonRun(const ComparisonRun&) = delete;
  ComparisonRun& operator=(const ComparisonRun&) = delete;

  /// Ends the previous step and begins the next. Returns false if the run is to end. Call it after `initialize`, before the
  /// first forward pass of each step. The time of a step runs from one call to the following, loading data included. Waits for
  /// the device. Errors: RuntimeError before `initialize`, and if the program passed no loss for the previous step.
  bool next();
  /// Index of the current step, from 0. The program chooses the batch by it.
  int64_t step() const;
  /// Records the step's loss: unscaled, one element. Several losses of one step are added up. Waits for the device. Errors:
  /// ValueError for more elements, RuntimeError before `next`.
  void loss(const at::Tensor& loss);
  void loss(double loss);

  /// True if the run only measures the times of its steps. The program may leave out its test then.
  bool only_times() const;
  /// The result by which the level is judged: the share of the test set that is classified correctly, from 0 to 1, or a loss on
  /// data outside the training set. Without either it is the training loss of the last tenth of the steps. Errors: ValueError
  /// for a share below 0 or above 1.
  void test_accuracy(double share);
  void test_loss(double loss);

  /// Writes the run's tables into a folder, and creates the folder if it is missing: steps.csv, result.csv, memory.csv,
  /// parameters.csv and trace.csv. Errors: RuntimeError before `next` has returned false, and if a file cannot be written.
  void write(const std::string& folder) const;

 private:
  friend class Comparison;
  ComparisonRun(int64_t steps, bool only_times);
  bool has_ended() const;
  /// Median time of a step in milliseconds, without the first steps, which are slower.
  double median_step() const;

  struct Record;
  std::unique_ptr<Record> record_;
};

}  // namespace apex::amp
