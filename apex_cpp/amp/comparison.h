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

/// How long `Comparison` trains, and how often.
struct ComparisonOptions {
  /// Steps of a training run.
  TORCH_ARG(int64_t, steps) = 200;
  /// Training runs at each level, with seeds from `seed` on: their spread says which differences mean something.
  TORCH_ARG(int64_t, seeds) = 3;
  TORCH_ARG(uint64_t, seed) = 0;
  /// Steps of a run that is made for times alone, and the most rounds of such runs: levels take turns in each.
  TORCH_ARG(int64_t, timed_steps) = 20;
  TORCH_ARG(int64_t, rounds) = 24;
  /// Called before each run with what it is for, to show how far the comparison is.
  TORCH_ARG(std::function<void(const std::string&)>, on_run);
};

/// Trains a program at several levels and records what each costs and what comes of it, for the report that
/// `tools/compare --report FOLDER` makes: which level to take, and why not the others.
///
/// The program is a function that builds its model and optimizer, initializes them at the level that it is given, and trains
/// for as long as the run wants, as for `amp::Doctor`:
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
/// It is called many times, each time with the default generators seeded for the run, and has to do the same whenever it is
/// given the same level and seed. Runs are made one after the other on the calling thread; afterwards there is no session, as
/// after `amp::reset`. For CPU and CUDA tensors; waits for the device. Errors are those of the program.
class Comparison {
 public:
  using Program = std::function<void(const OptLevel& level, ComparisonRun& run)>;

  /// Errors: ValueError where O0, which the others are compared with, is not among the levels, where a level is there twice,
  /// and for options that say so; RuntimeError for an unknown level.
  Comparison(std::vector<OptLevel> levels, Program program, const ComparisonOptions& options = {});

  /// Trains at every level with every seed; then measures steps in rounds, in which the levels take turns, until the order of
  /// their times is known or the most rounds are made. Writes tables into `folder`, which is made if it is missing; those of an
  /// earlier comparison are replaced. Errors: RuntimeError where a file cannot be written, and where the program ends before
  /// `next` has returned false.
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

/// A level as reports call it, with what it is given beside: "O2", "O2 loss_scale 128.0", "O2 float32_modules a+b".
std::string name_in_reports(const OptLevel& level);
/// A name as a folder has it: letters, digits and -._+ stay, everything else becomes an underscore.
std::string folder_name(std::string name);

}  // namespace detail
}  // namespace apex::amp
