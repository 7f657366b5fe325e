#pragma once

#include <string>
#include <vector>

#include "cells.h"
#include "common/progress.h"

namespace comparison {

/// Runs what is missing of `cells`, each in a process of its own, in the folder `out`; shows how far it is. A cell is made in
/// OUT/cells/NAME.part, which is renamed when it is whole; a half-made or damaged one is made anew. OUT/cells.csv lists them
/// and whether each is finished. Returns how many failed: a training that diverges is no failure. Cells whose O0 failed are not
/// begun: the next start makes them. OUT/grid has the path of the file `grid`, whose cells these are. `start_processes`: see
/// Options. Throws UserError where files cannot be written, and where `out` holds the runs of another grid.
int run_cells(const std::string& grid, const std::vector<Cell>& cells, const std::string& out,
              const std::string& start_processes, common::Progress& progress);

}  // namespace comparison
