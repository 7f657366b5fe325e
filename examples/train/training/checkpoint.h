#pragma once

#include <cstdint>
#include <string>

#include "training/step.h"

namespace train {

/// How far a run has come. The data order and the learning rate follow from it and the config.
struct Position {
  int64_t epoch = 0;  // epochs done
  int64_t step = 0;   // steps done, over all epochs
  int64_t skipped = 0;
};

/// Writes what the rest of the run depends on, with `amp::save_checkpoint`. The file at `path` is replaced as a whole or not at
/// all. Throws UserError where it cannot be written.
void save_checkpoint(const std::string& path, const Training& training, const Position& position);

/// Puts a checkpoint's state into what is trained. Training on gives bitwise the losses of a run that was never interrupted.
/// Throws UserError where the file is no such checkpoint.
Position load_checkpoint(const std::string& path, const Training& training);

}  // namespace train
