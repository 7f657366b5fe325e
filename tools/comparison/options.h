#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace comparison {

/// The command line.
struct Options {
  std::string grid, out;
  std::string start_processes;  // the command that starts several
  std::string cell, weights;    // what a start for one cell is given
  std::string turns;            // and one for rounds of short runs
  int64_t rounds = 1;
  std::string help;  // the text to print in place of all else; empty: it was not asked for
};

/// Reads the arguments (without the program's name). Throws UserError.
Options parse_options(const std::vector<std::string>& arguments);

}  // namespace comparison
