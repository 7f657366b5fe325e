#pragma once

#include <vector>

#include "runner.h"

namespace bench {

/// Options that only some suites support, as bits.
enum Takes : unsigned { kNoMore = 0, kDevice = 1, kQuick = 2 };

/// A set of benchmarks that answers one question.
struct Suite {
  const char* name;
  const char* question;
  void (*run)(Runner&);
  unsigned takes = kNoMore;
  int rounds = 25;  // default
};

/// All suites. A new suite needs a function, declared here, and a line in suites.cpp.
const std::vector<Suite>& suites();

void run_casts(Runner& runner);
void run_compile(Runner& runner);
void run_contrib(Runner& runner);
void run_convolution(Runner& runner);
void run_ddp(Runner& runner);
void run_kernels(Runner& runner);
void run_pages(Runner& runner);
void run_statistics(Runner& runner);
void run_step(Runner& runner);
void run_train(Runner& runner);

}  // namespace bench
