#pragma once

#include <memory>

#include "options.h"
#include "training/team.h"

namespace comparison {

/// The processes of which this is one, as torchrun says it; or this one alone.
std::unique_ptr<train::Team> make_team();

/// Runs the one cell whose folder the options name, as examples/train runs a config, on the processes of which this is one, and
/// then compares its level with O0, layer by layer. Returns the exit code of examples/train.
int run_cell(const Options& options);

}  // namespace comparison
