#pragma once

#include <string>
#include <vector>

#include "cells.h"

namespace comparison {

/// The command line that runs a cell's own program for a shell, with the run's values in place of {level}, {seed}, {steps} and
/// {folder}. {level} is the level's name, or the path of the folder's level.yaml for one that is given more than its name.
std::string own_command(const Cell& cell, const CellFolder& folder, int64_t steps);

/// Runs the command that builds a program. Its output goes to `log`. Throws UserError, which names the log, where it fails.
void build(const OwnProgram& program, const std::string& log);

/// The files that the program's command names, the program itself among them: a YAML comment with size and checksum for each.
/// Files that the shell writes the command's output to are left out.
std::string files_of(const OwnProgram& program);

/// What a program has not left in its folder that a report needs, in a sentence; empty where all of it is there: steps.csv with
/// the columns step, loss and step_ms, and a row for a step at least.
std::string what_is_missing(const CellFolder& folder);

/// The milliseconds of steps that steps.csv has, the median without the first ones. Throws UserError as `what_is_missing` says.
double median_step(const CellFolder& folder);

}  // namespace comparison
