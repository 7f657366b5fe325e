#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace comparison {

/// A training config, by the name of its file.
struct NamedConfig {
  std::string name;
  train::Config config;
};

/// A level as it is called in a report: "O2", "O2 loss_scale 128", "O2 float32_modules head", or the name of its file. Or what
/// stands in the place of one: "no amp", "autocast BF16", "autocast FP16 + GradScaler".
struct NamedLevel {
  std::string name;
  apex::amp::OptLevel level;
  std::optional<train::TorchAmpConfig> torch_amp = std::nullopt;
};

/// A program of the user's own, which trains at one level with one seed and writes what it measured.
struct OwnProgram {
  std::string build;    // a command that builds it, run once before all runs; may be empty
  std::string command;  // with {level}, {seed} and {folder}, and {steps} where it takes a number of steps; empty: there is none
  std::string directory;  // that both are started in: the grid's
  int64_t steps = 0;      // in place of {steps}
  std::string files;      // the files that the command names, as `files_of` lists them: another build is another program

  bool takes_steps() const { return command.find("{steps}") != std::string::npos; }
};

/// What is to be compared: every config at every level, with every seed, by every number of processes; or one program at every
/// level with every seed.
struct Grid {
  std::vector<NamedConfig> configs;
  OwnProgram program;
  std::vector<NamedLevel> levels;  // O0, which the others are compared with, is the first
  std::vector<int64_t> seeds = {0, 1, 2};
  std::vector<int64_t> processes = {1};
  int64_t rounds = 24;  // the most in which levels take turns for the times of their steps
};

/// Reads a grid and the configs and levels that it names; paths start from the grid's folder. No two cells may share a folder.
/// Each model is built and initialized at every level, each data set read, so that what cannot run is found before anything
/// does. Throws UserError, a line for each mistake, with the file and, of a mistake in its text, line, column, key and value.
Grid read_grid(const std::string& path);

}  // namespace comparison
