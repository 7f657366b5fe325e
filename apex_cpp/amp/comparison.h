#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <apex_cpp/amp/comparison/comparison_run.h>
#include <apex_cpp/amp/comparison/measurement.h>

#include "opt_levels/opt_level.h"

namespace apex::amp {

using opt_levels::OptLevel;

/// How long and how often `Comparison` trains.
struct ComparisonOptions {
  /// Steps of a training run.
  TORCH_ARG(int64_t, steps) = 200;
  /// Number of training runs at each level, with seeds from `seed` on. The spread over seeds shows which differences are
  /// significant.
  TORCH_ARG(int64_t, seeds) = 3;
  TORCH_ARG(uint64_t, seed) = 0;
  /// Steps of a run that only measures times.
  TORCH_ARG(int64_t, timed_steps) = 20;
  /// Maximum number of timing rounds. A round times each level once.
  TORCH_ARG(int64_t, rounds) = 24;
  /// Called before each run with the purpose of the run, to show progress.
  TORCH_ARG(std::function<void(const std::string&)>, on_run);
};

/// Trains a program at several levels and records the cost and the result of each level. `tools/compare --report FOLDER` makes
/// a report of the records: which level to use, and the reasons against the others.
///
/// The program is a function that builds its model and optimizer, initializes them at the given level, and trains until
/// `run.next()` returns false, as for `amp::Doctor`:
/// ```
/// amp::Comparison comparison({"O0", "O1", "O4"}, [&](const amp::OptLevel& level, amp::ComparisonRun& run) {
///   Net model;
///   torch::optim::SGD optimizer(model->parameters(), 0.1);
///   auto [net, opt] = amp::initialize(model, optimizer, level);
///   while (run.next()) {
///     auto [x, y] = batch(run.step());
///     opt.zero_grad();
///     auto loss = criterion(net->forward(x), y);
///     amp::scale_loss(loss, opt).backward();
///     opt.step();
///     run.loss(loss);
///   }
///   if (!run.only_times()) run.test_accuracy(test(net));
/// });
/// comparison.run("runs/mine");
/// ```
/// The comparison calls the program many times and seeds the default generators before each call. The same level and seed must
/// give the same run. Runs follow one another on the calling thread. After a run there is no session, as after `amp::reset`.
/// Takes CPU and CUDA tensors; waits for the device. Errors of the program are passed on.
class Comparison {
 public:
  using Program = std::function<void(const OptLevel& level, ComparisonRun& run)>;

  /// Errors: ValueError if O0, the baseline, is not among the levels, if a level is given twice, and for `steps`, `seeds` or
  /// `timed_steps` below 1; RuntimeError for an unknown level.
  Comparison(std::vector<OptLevel> levels, Program program, const ComparisonOptions& options = {});

  /// Trains at every level with every seed. Then measures steps in rounds, in which the levels take turns, until the order of
  /// their times is known or the maximum number of rounds is reached. Writes tables into `folder`: creates the folder if it is
  /// missing and replaces the tables of an earlier comparison. Errors: RuntimeError if a file cannot be written, and if the
  /// program ends before `next` has returned false.
  void run(const std::string& folder);

 private:
  void train(const std::string& folder, size_t level, int64_t seed);
  void time_round();
  void call(size_t level, uint64_t seed, ComparisonRun& run);

  std::vector<OptLevel> levels_;
  Program program_;
  ComparisonOptions options_;
  detail::TimedGroup times_;
};

namespace detail {

/// The name of a level in reports, with its overrides: "O2", "O2 loss_scale 128.0", "O2 float32_modules a+b".
std::string name_in_reports(const OptLevel& level);
/// The name as the name of a folder: letters, digits and -._+ stay, every other character becomes an underscore.
std::string folder_name(std::string name);

}  // namespace detail
}  // namespace apex::amp
