#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace apex::amp {

/// One training run of a program at one level, and what a comparison records of it: the time and the loss of each step, the
/// loss scale, which steps were skipped, memory, the dtypes of weights, masters and gradients, and those of operators.
///
/// `amp::Comparison` makes the runs of a program that compares levels itself. A program that trains at one level, which
/// `tools/compare` starts once for each of them, makes its own:
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
/// To be made before the model is, on the thread that trains: memory counts from there.
class ComparisonRun {
 public:
  /// A run of that many steps. Errors: ValueError where `steps` is below 1.
  explicit ComparisonRun(int64_t steps);
  ~ComparisonRun();
  ComparisonRun(const ComparisonRun&) = delete;
  ComparisonRun& operator=(const ComparisonRun&) = delete;

  /// Ends the step before and begins the next; false: the run is to end. To be called after `initialize`, before each step's
  /// first forward pass. Waits for the device. Errors: RuntimeError before `initialize`, and where the step before was not
  /// given its loss.
  bool next();
  /// The number of the step that has begun, from 0: which batch is due.
  int64_t step() const;
  /// Takes the step's loss, unscaled, of one element; of several losses their sum counts. Waits for the device. Errors:
  /// ValueError for more elements, RuntimeError before `next`.
  void loss(const at::Tensor& loss);
  void loss(double loss);

  /// Whether this run is made for the times of its steps alone: a program need not test its model then.
  bool only_times() const;
  /// By what the level is judged after training: the share of the test set that is classified correctly, from 0 to 1, or a
  /// loss on data that was not trained on. Without either it is the training loss of the last tenth of the steps. Errors:
  /// ValueError for a share that is not from 0 to 1.
  void test_accuracy(double share);
  void test_loss(double loss);

  /// Writes the run's tables into a folder, which is made if it is missing: steps.csv, result.csv, memory.csv, parameters.csv
  /// and trace.csv. Errors: RuntimeError before `next` has returned false, and where a file cannot be written.
  void write(const std::string& folder) const;

 private:
  friend class Comparison;
  ComparisonRun(int64_t steps, bool only_times);
  bool has_ended() const;
  /// Milliseconds: of the steps without the first ones, which are slower.
  double median_step() const;

  struct Record;
  std::unique_ptr<Record> record_;
};

}  // namespace apex::amp
