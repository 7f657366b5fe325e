#pragma once

#include <string>
#include <vector>

#include "grid.h"

namespace comparison {

/// One run of a grid.
struct Cell {
  std::string name;  // of its folder: "digits_convnet-O1-seed0", "digits_convnet-O1-seed0-2processes"
  std::string config_name, level_name;
  train::Config config;
  int64_t processes = 1;
  std::string reference;  // the cell at O0 that this one is compared with; its own name where it is that
};

/// All cells in the order in which they run. Levels change the fastest, so that a machine that gets slower, or faster, does so
/// for all of them alike; O0 runs before the cells that are compared with it.
std::vector<Cell> cells_of(const Grid& grid);

/// The files of a cell, in the folder it is made in or in that of a finished one. What it measured is told in README.md.
struct CellFolder {
  std::string path;

  std::string config() const { return path + "/cell.yaml"; }
  std::string log() const { return path + "/log.txt"; }
  std::string run() const { return path + "/run"; }
  std::string weights() const { return path + "/weights.safetensors"; }
  std::string listing() const { return path + "/files.csv"; }
  std::string table(const std::string& name) const { return path + "/" + name + ".csv"; }
};

/// Lists every file of a cell that has run, with size and checksum, so that a later start knows whether all are still there.
void write_listing(const CellFolder& folder);

/// Whether the folder has a cell of this very config, as it was when it was listed.
bool is_finished(const CellFolder& folder, const Cell& cell);

}  // namespace comparison
