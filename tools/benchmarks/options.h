#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

/// The command line.
struct Options {
  std::string suite;
  std::string device = "cpu";
  std::string csv;   // file to write; empty: none
  std::string only;  // regular expression that a benchmark's name must contain; empty: all
  int rounds = 25;
  bool help = false;
};

/// A mistake of whoever called the program; `what` says how to call it right.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads the arguments (without the program's name). Throws UsageError.
Options parse_options(const std::vector<std::string>& arguments);

}  // namespace bench
