#include "runner.h"

#include <ATen/Parallel.h>

#include <iostream>

namespace bench {

Runner::Runner(const Options& options) : device_(options.device), rounds_(options.rounds), only_(options.only) {
  if (at::get_num_threads() > 1) thread_counts_.push_back(at::get_num_threads());
}

bool Runner::wants(const std::string& group, const std::string& name) const {
  return std::regex_search(group + "/" + name, only_);
}

std::vector<double> Runner::medians(const std::string& benchmark, int threads, const std::vector<Variant>& variants,
                                    int repeats) {
  at::set_num_threads(threads);
  progress_.start(benchmark + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads"));
  const auto show = [&](int done) { progress_.round(done / repeats, rounds_); };
  const auto rounds = interleave(variants, rounds_ * repeats, show);
  progress_.clear();
  std::vector<double> medians;
  for (const auto& variant : rounds) medians.push_back(median(variant));
  return medians;
}

void Runner::print_group() {
  print_table(std::cout, {results_.begin() + static_cast<std::ptrdiff_t>(printed_), results_.end()});
  printed_ = results_.size();
}

}  // namespace bench
