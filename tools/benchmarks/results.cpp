#include "results.h"

#include <apex_cpp/files/csv.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>

namespace bench {
namespace {

using Cells = std::vector<std::string>;

/// Three significant digits for ratios, whole numbers for large values.
std::string number(double value) {
  if (std::isnan(value)) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), std::abs(value) < 10 ? "%.3f" : "%.0f", value);
  return text;
}

Cells header_of(const Result& result) {
  Cells cells{result.group, "threads"};
  for (const auto& [name, value] : result.values) cells.push_back(name);
  return cells;
}

Cells cells_of(const Result& result) {
  Cells cells{result.name, std::to_string(result.threads)};
  for (const auto& [name, value] : result.values) cells.push_back(number(value));
  if (!result.remark.empty()) cells.push_back(result.remark);
  return cells;
}

std::string padding(const std::string& cell, size_t width) { return std::string(width - cell.size(), ' '); }

}  // namespace

void print_table(std::ostream& out, const std::vector<Result>& results) {
  if (results.empty()) return;
  std::vector<Cells> rows{header_of(results.front())};
  for (const auto& result : results) rows.push_back(cells_of(result));
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    out << row[0] << padding(row[0], widths[0]);
    for (size_t i = 1; i < widths.size(); ++i) out << "  " << padding(row[i], widths[i]) << row[i];
    if (row.size() > widths.size()) out << "  " << row.back();
    out << "\n";
  }
  out << std::endl;
}

void write_csv(std::ostream& out, const std::string& suite, const std::vector<Result>& results) {
  out << "suite,group,benchmark,threads,quantity,value\n";
  for (const auto& result : results) {
    for (const auto& [name, value] : result.values) {
      if (!std::isnan(value)) out << apex::csv_row(suite, result.group, result.name, result.threads, name, value);
    }
    if (result.remark.empty()) continue;
    out << apex::csv_row(suite, result.group, result.name, result.threads, "remark", result.remark);
  }
}

}  // namespace bench
