#pragma once

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

namespace bench {

/// What one benchmark found: named numbers, whose names carry the unit ("amp ns", "amp/torch").
struct Result {
  std::string group;
  std::string name;
  int threads;
  std::vector<std::pair<std::string, double>> values;  // NaN: there is none
  std::string remark = "";                             // what else there is to say; one line, or nothing
};

/// One group as a table with aligned columns, and the remarks behind them: `results` have the same value names.
void print_table(std::ostream& out, const std::vector<Result>& results);
/// One line a number, with a header: suite,group,benchmark,threads,quantity,value. Remarks are values of the quantity "remark".
void write_csv(std::ostream& out, const std::string& suite, const std::vector<Result>& results);

}  // namespace bench
