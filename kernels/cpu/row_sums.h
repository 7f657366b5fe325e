#pragma once

#include "kernels/cpu/pass.h"

namespace apex::kernels::cpu {

// Joins value_at(0) ... value_at(count - 1) in the fixed order of rules/lanes.h.
template <class Fold, class ValueAt>
double ordered_fold(size_t count, const ValueAt& value_at) {
  double lanes[rules::kLanes];
  const auto used = static_cast<int>(std::min<size_t>(count, rules::kLanes));
  std::fill_n(lanes, rules::folded_lanes(used), 0.0);
  for (size_t i = 0; i < count; ++i) lanes[i % rules::kLanes] = Fold::join(lanes[i % rules::kLanes], value_at(i));
  return rules::fold_lanes<Fold>(lanes, used);
}

// Sum `sum` of the rule over each row of the group, from its chunks.
template <class Rule>
std::vector<double> row_sums(const plan::Group& group, const ChunkSums<Rule>& chunks, size_t sum = 0) {
  std::vector<double> rows(group.rows.size());
  for (size_t begin = 0, end = 0; begin < chunks.size(); begin = end) {
    const int64_t row = group.chunks[begin].row;
    while (end < chunks.size() && group.chunks[end].row == row) ++end;
    rows[static_cast<size_t>(row)] =
        ordered_fold<typename Rule::Fold>(end - begin, [&](size_t i) { return chunks[begin + i][sum]; });
  }
  return rows;
}

}  // namespace apex::kernels::cpu
