#include <apex_cpp/amp/comparison.h>

#include <ATen/Context.h>
#include <apex_cpp/amp/session.h>
#include <apex_cpp/amp/trace.h>
#include <apex_cpp/files/atomic_file.h>
#include <apex_cpp/files/csv.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <set>
#include <sstream>
#include <utility>

namespace apex::amp {
namespace {

constexpr const char* kProgram = "program";  // in the column of training configs' names
constexpr size_t kLongestName = 200;         // file systems take 255 bytes; an ending such as ".csv" follows

std::string run_name(const std::string& level, int64_t seed) {
  return detail::folder_name(kProgram + ("-" + level) + "-seed" + std::to_string(seed));
}

// The name of a level beside those before it. Levels that differ only in what names leave out, cast lists, are numbered.
std::string name_of(const std::vector<OptLevel>& levels, size_t index) {
  const auto name = detail::name_in_reports(levels[index]);
  int64_t number = 1;
  for (size_t i = 0; i < index; ++i) {
    if (levels[i] == levels[index]) return name_of(levels, i);  // a duplicate, which is an error
    if (detail::name_in_reports(levels[i]) == name) ++number;
  }
  return number == 1 ? name : name + " " + std::to_string(number);
}

void check_comparison(const std::vector<std::string>& names, const ComparisonOptions& options) {
  TORCH_CHECK_VALUE(std::find(names.begin(), names.end(), "O0") != names.end(),
                    "Comparison: O0 is not among the levels. Add it: the others are compared with it.");
  std::set<std::string> listed;
  for (const auto& name : names) {
    TORCH_CHECK_VALUE(listed.insert(name).second, "Comparison: the level ", name, " is listed twice. List each level once.");
  }
  TORCH_CHECK_VALUE(options.steps() >= 1, "Comparison: steps=", options.steps(), " is not allowed. Give 1 or more.");
  TORCH_CHECK_VALUE(options.seeds() >= 1, "Comparison: seeds=", options.seeds(), " is not allowed. Give 1 or more.");
  TORCH_CHECK_VALUE(options.timed_steps() >= 1, "Comparison: timed_steps=", options.timed_steps(),
                    " is not allowed. Give 1 or more.");
}

}  // namespace

Comparison::Comparison(std::vector<OptLevel> levels, Program program, const ComparisonOptions& options)
    : levels_(std::move(levels)), program_(std::move(program)), options_(options) {
  times_.config = kProgram;
  for (size_t i = 0; i < levels_.size(); ++i) {
    levels_[i].preset();  // throws for an unknown level
    times_.levels.push_back(name_of(levels_, i));
  }
  check_comparison(times_.levels, options_);
}

void Comparison::call(size_t level, uint64_t seed, ComparisonRun& run) {
  if (options_.on_run()) options_.on_run()((run.only_times() ? "timing " : "training at ") + times_.levels[level]);
  reset();
  at::manual_seed(seed);
  try {
    program_(levels_[level].with(opt_levels::InitializeOptions().verbosity(0)), run);
  } catch (...) {
    reset();
    throw;
  }
  reset();
  TORCH_CHECK(run.has_ended(),
              "Comparison: the program ended before run.next() returned false. Write its loop as while (run.next()) { … "
              "run.loss(loss); }.");
}

void Comparison::train(const std::string& folder, size_t level, int64_t seed) {
  ComparisonRun run(options_.steps());
  call(level, options_.seed() + static_cast<uint64_t>(seed), run);
  run.write(folder + "/cells/" + run_name(times_.levels[level], seed));
}

void Comparison::time_round() {
  const size_t count = levels_.size(), first = times_.rounds.size() % count;  // the first level changes with each round
  std::vector<double> times(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t level = (first + i) % count;
    ComparisonRun run(options_.timed_steps(), /*only_times=*/true);
    call(level, options_.seed(), run);
    times[level] = run.median_step();
  }
  times_.rounds.push_back(std::move(times));
}

void Comparison::run(const std::string& folder) {
  std::error_code is_missing;
  std::filesystem::remove(folder + "/cells.csv", is_missing);  // a run that throws leaves no table of older cells
  std::string cells = "cell,config,level,seed,processes,reference,finished\n";
  for (int64_t seed = 0; seed < options_.seeds(); ++seed) {
    for (size_t level = 0; level < levels_.size(); ++level) {
      train(folder, level, seed);
      const auto number = options_.seed() + static_cast<uint64_t>(seed);
      cells +=
          csv_row(run_name(times_.levels[level], seed), kProgram, times_.levels[level], number, 1, run_name("O0", seed), 1);
    }
  }
  times_.rounds.clear();
  while (detail::needs_rounds(times_.rounds, options_.rounds())) time_round();
  detail::write_text(folder + "/times.csv", detail::kTimesHeader + detail::times_rows(times_));
  detail::write_text(folder + "/ratios.csv", detail::kRatiosHeader + detail::ratios_rows(times_));
  detail::write_text(folder + "/cells.csv", cells);
}

namespace detail {

std::string name_in_reports(const OptLevel& level) {
  const std::string item = "  - ";  // list item: a module or an operator
  std::istringstream lines(level.to_yaml());
  std::string name = level.name(), line, between;
  while (std::getline(lines, line)) {
    if (line.rfind(item, 0) == 0) {
      name += between + line.substr(item.size());
      between = "+";
      continue;
    }
    between = " ";
    const auto colon = line.find(':');
    if (line.front() == ' ' || line.rfind("opt_level", 0) == 0 || colon == std::string::npos) continue;
    name += " " + line.substr(0, colon) + line.substr(colon + 1);
  }
  return name;
}

std::string folder_name(std::string name) {
  if (name.size() > kLongestName) {
    Crc32c sum;
    sum.add(name.data(), name.size());
    const std::string end = "-" + std::to_string(sum.value());
    name = name.substr(0, kLongestName - end.size()) + end;
  }
  for (auto& letter : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(letter)) || std::strchr("-._+", letter) != nullptr;
    letter = plain ? letter : '_';
  }
  return name;
}

}  // namespace detail
}  // namespace apex::amp
