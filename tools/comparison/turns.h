#pragma once

#include "options.h"

namespace comparison {

/// In one process, or on the processes of which this is one: rounds of short training runs, in each of which the levels take
/// turns. The folder has a config for each level: 0.yaml, 1.yaml and so on. Leaves turns.csv there, with a row for each run and
/// the medians of its steps. Returns an exit code.
int run_turns(const Options& options);

}  // namespace comparison
