#pragma once

#include "team.h"

namespace train {

/// The whole program but for how its processes find each other: reads the command line, trains, and answers the exit code.
int run_program(int argc, char** argv, Team& team);

/// Prints an error as one line and answers the exit code that goes with it; to be called while it is handled.
int complain();

}  // namespace train
