#pragma once

#include <optional>
#include <string>
#include <vector>

namespace bench {

/// The command line.
struct Options {
  std::string suite;
  std::string device = "cpu";
  std::string csv;            // file to write; empty: none
  std::string only;           // regular expression that a benchmark's name must contain; empty: all
  bool quick = false;         // as little work as shows that everything runs
  std::optional<int> rounds;  // none: as many as the suite takes by itself
  std::string help;           // the text to print in place of measuring; empty: it was not asked for
};

/// Reads the arguments (without the program's name); `suites` stands at the end of the help text. Throws common::UserError.
Options parse_options(const std::vector<std::string>& arguments, const std::string& suites = "");

/// Throws common::UserError where an option has no effect on the suite, or a GPU is asked for and the machine has none.
void check_suite(const Options& options, bool has_gpu);

}  // namespace bench
