// Runs one suite of benchmarks; results go to standard output, progress to standard error.
#include <malloc.h>

#include <fstream>
#include <iostream>

#include "options.h"
#include "suites.h"

namespace {

using namespace bench;

void print_usage(std::ostream& out) {
  out << "usage: tools/bench SUITE [--rounds N] [--only REGEX] [--device cpu|cuda] [--csv FILE]\n\n"
         "Measures variants of the same work by turns, in one process, and prints the medians over the rounds.\n"
         "  --rounds N    rounds of every benchmark (default 25)\n"
         "  --only REGEX  only benchmarks whose group/name contains a match\n"
         "  --device D    where the tensors are: cpu (default) or cuda; for kernels and step\n"
         "  --csv FILE    also write every number to FILE\n"
         "  --help        print this\n\nSuites:\n";
  for (const auto& suite : suites()) out << "  " << suite.name << "  " << suite.question << "\n";
}

const Suite& find_suite(const std::string& name) {
  if (name.empty()) throw UsageError("name a suite");
  for (const auto& suite : suites()) {
    if (suite.name == name) return suite;
  }
  throw UsageError("there is no suite '" + name + "'");
}

int run(const Options& options) {
  const auto& suite = find_suite(options.suite);
  std::ofstream csv;
  if (!options.csv.empty()) {
    csv.open(options.csv);
    if (!csv) throw UsageError("cannot write " + options.csv);
  }
  Runner runner(options);
  suite.run(runner);
  if (runner.results().empty())
    throw UsageError("no benchmark of suite '" + options.suite + "' matches '" + options.only + "'");
  if (csv.is_open()) write_csv(csv, options.suite, runner.results());
  if (csv.is_open() && !csv.flush()) throw UsageError("cannot write " + options.csv);
  return 0;
}

// What one variant frees in thousands of small pieces glibc keeps, to put it together in the middle of another one's turn.
void tidy_memory_at_once() {
#ifdef M_MXFAST
  mallopt(M_MXFAST, 0);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  tidy_memory_at_once();
  try {
    const auto options = parse_options({argv + 1, argv + argc});
    if (!options.help) return run(options);
    print_usage(std::cout);
    return 0;
  } catch (const UsageError& error) {
    std::cerr << "bench: " << error.what() << " (tools/bench --help tells more)\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "bench: " << error.what() << "\n";
    return 1;
  }
}
