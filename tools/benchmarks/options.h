#pragma once

#include <optional>
#include <string>
#include <vector>

namespace bench {

/// The parsed command line.
struct Options {
  std::string suite;
  std::string device = "cpu";
  std::string csv;            // output file; empty: none
  std::string only;           // regular expression to search for in a benchmark's name; empty: all
  bool quick = false;         // the minimum of work that still runs everything
  std::optional<int> rounds;  // unset: the suite's own number
  std::string help;           // help text to print instead of measuring; empty: not requested
};

/// Parses the arguments (without the program's name). `suites` ends the help text. Throws common::UserError.
Options parse_options(const std::vector<std::string>& arguments, const std::string& suites = "");

/// Throws common::UserError if an option does not apply to the suite, or if a GPU is requested and there is none.
void check_suite(const Options& options, bool has_gpu);

}  // namespace bench
