#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "grid.h"

namespace comparison {

/// One run of a grid.
struct Cell {
  std::string name;  // of its folder: "digits_convnet-O1-seed0", "digits_convnet-O1-seed0-2processes"
  std::string config_name, level_name;
  train::Config config;
  OwnProgram program;      // that trains in place of examples/train; without a command: none
  std::string level_text;  // the level, as YAML, for a program
  int64_t processes = 1;
  std::string reference;  // the cell at O0 that this one is compared with; its own name where it is that
};

/// Empty where there is no such file.
std::string content_of(const std::string& path);

struct FileSum {
  size_t bytes = 0;
  unsigned long crc32 = 0;
};
/// Of a file that may be larger than memory; zeros where there is no such file.
FileSum sum_of_file(const std::string& path);

/// What a cell is made by, as its cell.yaml: a cell that was made by another text is made anew.
std::string description_of(const Cell& cell);

/// All cells in the order in which they run. Levels change the fastest, so that a machine that gets slower, or faster, does so
/// for all of them alike; O0 runs before the cells that are compared with it.
std::vector<Cell> cells_of(const Grid& grid);

/// The files of a cell, in the folder it is made in or in the finished one. README.md lists its tables.
struct CellFolder {
  std::string path;

  std::string config() const { return path + "/cell.yaml"; }
  std::string level() const { return path + "/level.yaml"; }
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
