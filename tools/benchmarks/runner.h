#pragma once

#include <c10/core/Device.h>

#include <regex>
#include <string>
#include <vector>

#include "common/progress.h"
#include "measure.h"
#include "options.h"
#include "results.h"

namespace bench {

/// What a suite runs its benchmarks with: which of them are asked for, how many rounds, and where results go.
class Runner {
 public:
  /// `rounds`: how many, where the options leave it open.
  Runner(const Options& options, int rounds);

  /// Where the tensors of suites that can choose are.
  at::Device device() const { return device_; }
  int rounds() const { return rounds_; }
  bool quick() const { return quick_; }
  /// One, and all that torch used when the program started.
  const std::vector<int>& thread_counts() const { return thread_counts_; }
  /// Whether --only lets this one through.
  bool wants(const std::string& group, const std::string& name) const;
  /// Measures the variants with that many threads and answers the medians, in nanoseconds a call. Short work is better
  /// measured often than long: whatever else the machine does then falls into few of the measurements. `repeats` are those
  /// that make up one of the user's rounds.
  std::vector<double> medians(const std::string& benchmark, int threads, const std::vector<Variant>& variants, int repeats = 1);
  /// Shows how far work is that is not measured: `done` parts of `total`.
  void show(const std::string& task, int done, int total);
  void add(Result result) { results_.push_back(std::move(result)); }
  /// Prints what was added since the last call: the results of one group.
  void print_group();
  const std::vector<Result>& results() const { return results_; }

 private:
  at::Device device_;
  int rounds_;
  bool quick_;
  std::regex only_;
  std::vector<int> thread_counts_{1};
  common::Progress progress_;
  std::vector<Result> results_;
  size_t printed_ = 0;
};

}  // namespace bench
