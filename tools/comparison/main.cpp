// Compares opt levels on a grid of training runs. See `compare --help`.
#include <filesystem>
#include <iostream>

#include <unistd.h>

#include "cell_program.h"
#include "options.h"
#include "own_program.h"
#include "program.h"
#include "rounds.h"
#include "runner.h"
#include "turns.h"

namespace {

void build(const comparison::OwnProgram& program, const std::string& out, common::Progress& progress) {
  progress.line("building the program: " + program.build);
  std::filesystem::create_directories(out);
  comparison::build(program, out + "/build.log");
}

int compare(const comparison::Options& options) {
  auto grid = comparison::read_grid(options.grid);
  common::Progress progress(std::cout, common::terminal_of(STDOUT_FILENO));
  const auto out = std::filesystem::absolute(options.out).string();
  if (!grid.program.build.empty()) build(grid.program, out, progress);
  grid.program.files = comparison::files_of(grid.program);  // as the build has left them
  const auto cells = comparison::cells_of(grid);
  const auto failed = comparison::run_cells(options.grid, cells, out, options.start_processes, progress) +
                      comparison::make_rounds(cells, {out, options.start_processes, grid.rounds}, progress);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto options = comparison::parse_options({argv + 1, argv + argc});
    if (!options.help.empty()) {
      std::cout << options.help;
      return EXIT_SUCCESS;
    }
    if (!options.turns.empty()) return comparison::run_turns(options);
    return options.cell.empty() ? compare(options) : comparison::run_cell(options);
  } catch (...) {
    return train::complain();
  }
}
