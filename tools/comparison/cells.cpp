#include "cells.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include <apex_cpp/amp/comparison.h>
#include <apex_cpp/files/csv.h>
#include <zlib.h>

#include "common/write_whole.h"

namespace comparison {
namespace {

namespace fs = std::filesystem;

constexpr const char* kListingHeader = "file,bytes,crc32\n";

std::string name_of(const std::string& config, const std::string& level, int64_t seed, int64_t processes) {
  auto name = config + "-" + level + "-seed" + std::to_string(seed);
  if (processes > 1) name += "-" + std::to_string(processes) + "processes";
  return apex::amp::detail::folder_name(std::move(name));
}

Cell cell_of(const NamedConfig& config, const NamedLevel& level, int64_t seed, int64_t processes) {
  Cell cell;
  cell.name = name_of(config.name, level.name, seed, processes);
  cell.config_name = config.name;
  cell.level_name = level.name;
  cell.config = config.config;
  cell.config.level = level.level;
  cell.config.torch_amp = level.torch_amp;
  cell.config.seed = seed;
  cell.config.run_dir.clear();
  cell.config.tensorboard = true;
  cell.config.on_divergence = "stop";  // the report says so of the level
  cell.config.climb_to.clear();
  cell.config.checkpoint_every = cell.config.epochs;
  cell.processes = processes;
  cell.reference = name_of(config.name, "O0", seed, processes);
  return cell;
}

Cell cell_of(const OwnProgram& program, const NamedLevel& level, int64_t seed) {
  Cell cell;
  cell.config_name = "program";
  cell.name = name_of(cell.config_name, level.name, seed, 1);
  cell.level_name = level.name;
  cell.config.seed = seed;
  cell.program = program;
  cell.level_text = level.level.to_yaml();
  cell.reference = name_of(cell.config_name, "O0", seed, 1);
  return cell;
}

// The rows of a listing for what is in the folder now, in order.
std::string listing_of(const CellFolder& folder) {
  std::map<std::string, std::string> rows;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path)) {
    if (!entry.is_regular_file() || entry.path() == folder.listing()) continue;
    const auto name = fs::relative(entry.path(), folder.path).string();
    const auto sum = sum_of_file(entry.path().string());
    rows[name] = apex::csv_row(name, sum.bytes, sum.crc32);
  }
  std::string text = kListingHeader;
  for (const auto& [name, row] : rows) text += row;
  return text;
}

}  // namespace

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

FileSum sum_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> block(size_t{1} << 20);
  FileSum sum;
  while (file) {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    const auto count = static_cast<size_t>(file.gcount());
    sum.crc32 = crc32_z(sum.crc32, reinterpret_cast<const Bytef*>(block.data()), count);
    sum.bytes += count;
  }
  return sum;
}

std::vector<Cell> cells_of(const Grid& grid) {
  std::vector<Cell> cells;
  if (!grid.program.command.empty()) {
    for (const auto seed : grid.seeds) {
      for (const auto& level : grid.levels) cells.push_back(cell_of(grid.program, level, seed));
    }
  }
  for (const auto& config : grid.configs) {
    for (const auto processes : grid.processes) {
      for (const auto seed : grid.seeds) {
        for (const auto& level : grid.levels) cells.push_back(cell_of(config, level, seed, processes));
      }
    }
  }
  return cells;
}

std::string description_of(const Cell& cell) {
  if (cell.program.command.empty()) return train::to_yaml(cell.config);
  return "# " + cell.program.command + "\n# in " + cell.program.directory + ", seed " + std::to_string(cell.config.seed) +
         ", " + std::to_string(cell.program.steps) + " steps\n" + cell.program.files + cell.level_text;
}

void write_listing(const CellFolder& folder) { common::write_whole(folder.listing(), listing_of(folder)); }

bool is_finished(const CellFolder& folder, const Cell& cell) {
  return fs::exists(folder.listing()) && content_of(folder.config()) == description_of(cell) &&
         content_of(folder.listing()) == listing_of(folder);
}

}  // namespace comparison
