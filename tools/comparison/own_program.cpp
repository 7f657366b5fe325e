#include "own_program.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <apex_cpp/amp/comparison/measurement.h>

#include "common/user_error.h"
#include "shell.h"

namespace comparison {
namespace {

constexpr size_t kSettling = 5;  // steps whose times do not count: buffers are made, the loss scale settles

void put(std::string& command, const std::string& place, const std::string& value) {
  for (auto at = command.find(place); at != std::string::npos; at = command.find(place, at + value.size())) {
    command.replace(at, place.size(), value);
  }
}

std::vector<std::string> fields_of(const std::string& row) {
  std::istringstream stream(row);
  std::vector<std::string> fields;
  for (std::string field; std::getline(stream, field, ',');) {
    const auto is_frame = [](char c) { return c == '"' || c == '\r'; };  // R quotes names, Python ends lines with \r\n
    field.erase(std::remove_if(field.begin(), field.end(), is_frame), field.end());
    fields.push_back(field);
  }
  return fields;
}

// The column's values as text; empty where the table has no such column, or no row.
std::vector<std::string> column_of(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string row;
  std::getline(file, row);
  const auto header = fields_of(row);
  const auto found = std::find(header.begin(), header.end(), name);
  const auto place = static_cast<size_t>(found - header.begin());
  std::vector<std::string> values;
  while (found != header.end() && std::getline(file, row)) {
    const auto fields = fields_of(row);
    if (place < fields.size()) values.push_back(fields[place]);
  }
  return values;
}

std::string in_folder_of(const OwnProgram& program, const std::string& command) {
  return "sh -c " + quoted("cd " + quoted(program.directory) + " && " + command);
}

}  // namespace

std::string own_command(const Cell& cell, const CellFolder& folder, int64_t steps) {
  const bool is_plain = apex::amp::OptLevel::from_yaml_string(cell.level_text) == apex::amp::OptLevel(cell.level_name);
  auto command = cell.program.command;
  put(command, "{level}", is_plain ? cell.level_name : quoted(folder.level()));
  put(command, "{seed}", std::to_string(cell.config.seed));
  put(command, "{steps}", std::to_string(steps));
  put(command, "{folder}", quoted(folder.path));
  return in_folder_of(cell.program, command);
}

void build(const OwnProgram& program, const std::string& log) {
  std::ofstream output(log);
  const int code =
      run_lines(in_folder_of(program, program.build), [&](const std::string& line) { output << line << std::endl; });
  if (code == 0) return;
  throw common::UserError("the command of key 'build' failed with exit code " + std::to_string(code) + "; its output: " + log);
}

std::string files_of(const OwnProgram& program) {
  std::istringstream words(program.command);
  std::string text, before;
  for (std::string word; words >> word; before = word) {
    const auto path = std::filesystem::path(program.directory) / word;
    const bool is_output = !before.empty() && before.back() == '>';
    std::error_code error;
    if (is_output || !std::filesystem::is_regular_file(path, error)) continue;
    const auto sum = sum_of_file(path.string());
    text += "# " + word + ": " + std::to_string(sum.bytes) + " bytes, crc32 " + std::to_string(sum.crc32) + "\n";
  }
  return text;
}

std::string what_is_missing(const CellFolder& folder) {
  for (const char* column : {"step", "loss", "step_ms"}) {
    if (column_of(folder.table("steps"), column).empty()) {
      return std::string("the program has not written a steps.csv with a column '") + column + "' in {folder}";
    }
  }
  return "";
}

double median_step(const CellFolder& folder) {
  if (const auto missing = what_is_missing(folder); !missing.empty()) throw common::UserError(missing);
  auto texts = column_of(folder.table("steps"), "step_ms");
  texts.erase(texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(std::min(kSettling, texts.size() / 2)));
  std::vector<double> times;
  for (const auto& text : texts) times.push_back(std::strtod(text.c_str(), nullptr));
  const double median = apex::amp::detail::median_interval(std::move(times)).median;
  if (median > 0) return median;
  throw common::UserError(
      "the median of column 'step_ms' of the program's steps.csv is not above 0: write milliseconds with their fractions");
}

}  // namespace comparison
