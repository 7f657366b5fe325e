#pragma once

#include "options.h"

namespace comparison {

/// Runs the one cell whose folder the options name, as examples/train runs a config, on the processes of which this is one, and
/// then compares its level with O0, layer by layer. Answers the exit code of examples/train.
int run_cell(const Options& options);

}  // namespace comparison
