#include "options.h"

#include "common/command_line.h"

namespace comparison {
namespace {

constexpr const char* kDescription =
    "Trains at every level of GRID with every seed, one run after the other, then measures steps in rounds in which the levels "
    "take turns, and writes the measurements to files in a folder.\nRuns that are already finished there are not repeated.";
constexpr const char* kExitCodes =
    "Exit code: 0 all cells are finished, 1 a cell failed, 2 an error in grid, arguments or files. A training that diverges is "
    "a result.";

void check_given(const Options& options) {
  if (options.cell.empty() && options.turns.empty() && (options.grid.empty() || options.out.empty())) {
    throw common::UserError("a grid and a folder are required: GRID --out DIR; see --help");
  }
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  common::CommandLine line("compare", kDescription, kExitCodes);
  line.argument("GRID", "a YAML file; tools/comparison/grids has some", common::text(options.grid));
  line.option("--out DIR", "the folder for all results", common::text(options.out));
  line.option("--start-processes COMMAND", "COMMAND N PROGRAM... starts N processes of a program (tools/compare gives one)",
              common::text(options.start_processes));
  line.option("--cell DIR", "run the one cell whose cell.yaml is in DIR (the program calls itself so)",
              common::text(options.cell));
  line.option("--weights FILE", "with --cell: the weights at which layers are compared with O0", common::text(options.weights));
  line.option("--turns DIR", "run rounds of short runs at the levels of DIR/0.yaml, 1.yaml, … (the program calls itself so)",
              common::text(options.turns));
  line.option("--rounds N", "with --turns: the number of rounds", common::whole_number(options.rounds, 1));
  options.help = line.read(arguments);
  if (options.help.empty()) check_given(options);
  return options;
}

}  // namespace comparison
