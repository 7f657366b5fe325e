#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace train {

/// The command line.
struct Options {
  std::string config;
  std::string resume;  // run folder or checkpoint; empty: a new run
  std::string run_dir;
  std::optional<int64_t> seed;
  std::optional<int64_t> epochs;
  int64_t stop_after = 0;
  std::string help;  // the text to print in place of training; empty: it was not asked for
};

/// Reads the arguments (without the program's name). Throws UserError.
Options parse_options(const std::vector<std::string>& arguments);

}  // namespace train
