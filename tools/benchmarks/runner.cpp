#include "runner.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

namespace bench {

Runner::Runner(const Options& options, int rounds)
    : device_(options.device),
      rounds_(options.rounds.value_or(rounds)),
      quick_(options.quick),
      only_(options.only),
      progress_(std::cerr, common::terminal_of(STDERR_FILENO)) {
  if (at::get_num_threads() > 1) thread_counts_.push_back(at::get_num_threads());
}

bool Runner::wants(const std::string& group, const std::string& name) const {
  return std::regex_search(group + "/" + name, only_);
}

std::vector<double> Runner::medians(const std::string& benchmark, int threads, const std::vector<Variant>& variants,
                                    int repeats) {
  at::set_num_threads(threads);
  const auto task = benchmark + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  progress_.begin("bench: " + task);
  const Stopwatch stopwatch;
  const auto show = [&](int done) {
    const double seconds = stopwatch.nanoseconds() * 1e-9;
    const int all = rounds_ * repeats;
    progress_.show({task, done / repeats, rounds_, "", seconds * (all - done) / std::max(done, 1)});
  };
  const auto rounds = interleave(variants, rounds_ * repeats, show);
  progress_.clear();
  std::vector<double> medians;
  for (const auto& variant : rounds) medians.push_back(median(variant));
  return medians;
}

void Runner::show(const std::string& task, int done, int total) {
  if (done == 0) progress_.begin("bench: " + task);
  progress_.show({task, done, total, "", 0});
}

void Runner::print_group() {
  progress_.clear();
  print_table(std::cout, {results_.begin() + static_cast<std::ptrdiff_t>(printed_), results_.end()});
  printed_ = results_.size();
}

}  // namespace bench
