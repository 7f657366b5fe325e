#pragma once

#include <string>
#include <vector>

#include "cells.h"
#include "common/progress.h"

namespace comparison {

/// How rounds are made: of what, and how many at the most.
struct RoundsPlan {
  std::string out, start_processes;  // see Options
  int64_t most = 0;
};

/// Measures the steps of the cells that are finished in OUT, in rounds in which the levels of a config take turns, until the
/// order of their times is known or `plan.most` rounds are made; a later start goes on with the rounds that are there, or makes
/// all of them anew where they have not shown the order. A program that takes no number of steps is not started for this: the
/// runs of a seed are a round. Writes OUT/rounds.csv, times.csv and ratios.csv. Returns how many configs could not be timed.
int make_rounds(const std::vector<Cell>& cells, const RoundsPlan& plan, common::Progress& progress);

}  // namespace comparison
