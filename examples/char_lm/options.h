#pragma once

#include <cstdint>
#include <string>

struct Options {
  std::string text = "/usr/share/common-licenses/GPL-3";  // on every Debian machine
  std::string opt_level = "O5";                           // or a level's YAML file
  std::string device = "cpu";
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t width = 128;
  int64_t context = 64;  // characters that a prediction may look back at
  double dropout = 0.1;
  int64_t batch = 32;        // sequences in a pass
  int64_t accumulation = 2;  // passes in a step
  int64_t steps = 1000;
  int64_t warmup = 50;  // steps, of which the first has 1/warmup of the rate
  double lr = 2e-3;
  double min_lr = 2e-4;
  double weight_decay = 0.1;
  double clip = 1.0;
  // Not empty: FusedAdam, with these storages, in place of torch::optim::AdamW.
  std::string master_storage, moment_storage;
  int64_t report = 50;   // steps between two lines of output
  int64_t sample = 500;  // characters written at the end
  double temperature = 0.8;
  uint64_t seed = 0;
  std::string record;  // folder for the tables of tools/compare; empty: none are written
};

/// Reads the command line. After an error, and after --help, it prints what there is to say and ends the program.
Options read_options(int argc, char** argv);
