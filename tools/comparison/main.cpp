// Compares opt levels on a grid of training runs. See `compare --help`.
#include <filesystem>
#include <iostream>

#include <unistd.h>

#include "cell_program.h"
#include "options.h"
#include "program.h"
#include "runner.h"

namespace {

int compare(const comparison::Options& options) {
  const auto cells = comparison::cells_of(comparison::read_grid(options.grid));
  common::Progress progress(std::cout, common::terminal_of(STDOUT_FILENO));
  const auto out = std::filesystem::absolute(options.out).string();
  return comparison::run_cells(cells, out, options.start_processes, progress) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto options = comparison::parse_options({argv + 1, argv + argc});
    if (!options.help.empty()) {
      std::cout << options.help;
      return EXIT_SUCCESS;
    }
    return options.cell.empty() ? compare(options) : comparison::run_cell(options);
  } catch (...) {
    return train::complain();
  }
}
