#pragma once

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

namespace bench {

/// The result of one benchmark: named numbers whose names include the unit ("amp ns", "amp/torch").
struct Result {
  std::string group;
  std::string name;
  int threads;
  std::vector<std::pair<std::string, double>> values;  // NaN: not available
  std::string remark = "";                             // one line, may be empty
};

/// Prints one group as an aligned table, followed by the remarks. All `results` must have the same value names.
void print_table(std::ostream& out, const std::vector<Result>& results);
/// Writes one line per number, with a header: suite,group,benchmark,threads,quantity,value. Remarks use the quantity "remark".
void write_csv(std::ostream& out, const std::string& suite, const std::vector<Result>& results);

}  // namespace bench
