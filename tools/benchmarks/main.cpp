// Runs one benchmark suite: results to standard output, progress to standard error.
#include <ATen/Context.h>
#include <malloc.h>

#include <iomanip>
#include <iostream>
#include <sstream>

#include "common/user_error.h"
#include "common/write_whole.h"
#include "options.h"
#include "suites.h"

namespace {

using namespace bench;

std::string list_of_suites() {
  std::ostringstream list;
  list << "Suites:";
  for (const auto& suite : suites()) list << "\n  " << std::left << std::setw(13) << suite.name << suite.question;
  return list.str();
}

const Suite& find_suite(const std::string& name) {
  for (const auto& suite : suites()) {
    if (suite.name == name) return suite;
  }
  throw common::UserError("there is no suite '" + name + "'; see --help");
}

std::string csv_of(const std::string& suite, const std::vector<Result>& results) {
  std::ostringstream table;
  write_csv(table, suite, results);
  return table.str();
}

int run(const Options& options) {
  const auto& suite = find_suite(options.suite);
  check_suite(options, at::hasCUDA());
  if (!options.csv.empty()) common::check_writable(options.csv);  // before minutes of measuring
  Runner runner(options, suite.rounds);
  suite.run(runner);
  if (runner.results().empty())
    throw common::UserError("no benchmark of suite '" + options.suite + "' matches '" + options.only + "'");
  if (!options.csv.empty()) common::write_whole(options.csv, csv_of(options.suite, runner.results()));
  return 0;
}

// glibc caches thousands of small freed blocks and would consolidate them during another variant's turn.
void tidy_memory_at_once() {
#ifdef M_MXFAST
  mallopt(M_MXFAST, 0);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  tidy_memory_at_once();
  try {
    const auto options = parse_options({argv + 1, argv + argc}, list_of_suites());
    if (options.help.empty()) return run(options);
    std::cout << options.help;
    return 0;
  } catch (const common::UserError& error) {
    std::cerr << "bench: " << error.what() << "\n";
    return 2;
  } catch (const c10::Error& error) {
    std::cerr << "bench: " << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "bench: " << error.what() << "\n";
    return 1;
  }
}
