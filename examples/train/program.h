#pragma once

#include <string>
#include <vector>

#include "training/observer.h"
#include "training/team.h"

namespace train {

enum ExitCode { kTrained = 0, kFailed = 1, kUserError = 2, kDiverged = 3 };

/// The whole program but for how its processes find each other: reads the command line, trains, and answers the exit code.
int run_program(int argc, char** argv, Team& team);
int run_program(const std::vector<std::string>& arguments, Team& team, Observer& observer);

/// Prints an error, a line for each mistake, and returns the exit code that goes with it; to be called while it is handled.
int complain();

}  // namespace train
