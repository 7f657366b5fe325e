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

/// Selects and measures the benchmarks of a suite and collects their results.
class Runner {
 public:
  /// `rounds`: the default if the options set none.
  Runner(const Options& options, int rounds);

  /// The device for tensors, in suites that support several.
  at::Device device() const { return device_; }
  int rounds() const { return rounds_; }
  bool quick() const { return quick_; }
  /// One thread, and as many as torch used when the program started.
  const std::vector<int>& thread_counts() const { return thread_counts_; }
  /// True if --only matches.
  bool wants(const std::string& group, const std::string& name) const;
  /// Measures the variants with that many threads and returns the medians, in nanoseconds per call. Many short measurements are
  /// better than few long ones: then other work on the machine disturbs only a few. `repeats` measurements make up one round.
  std::vector<double> medians(const std::string& benchmark, int threads, const std::vector<Variant>& variants, int repeats = 1);
  /// Shows the progress of unmeasured work: `done` of `total` parts.
  void show(const std::string& task, int done, int total);
  void add(Result result) { results_.push_back(std::move(result)); }
  /// Prints the results added since the last call, as one group.
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
