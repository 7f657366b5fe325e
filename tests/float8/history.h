#pragma once
// What the tests of delayed scaling read from a history.
#include <apex_cpp/amp/float8/history.h>

#include <string>

namespace apex::test {

inline amp::detail::Float8History::Rows all_rows(const amp::detail::Float8History& history) {
  amp::detail::Float8History::Rows rows;
  for (const std::string& weight : history.parameters()) rows.push_back(*history.row_of(weight));
  return rows;
}

/// The sum of the magnitudes of this pass: 0 if nothing was recorded.
inline double recorded(const amp::detail::Float8History& history) {
  return history.largest(all_rows(history)).sum().item<double>();
}

}  // namespace apex::test
