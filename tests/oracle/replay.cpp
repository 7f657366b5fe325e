#include "tests/oracle/replay.h"

#include <ATen/Parallel.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include "tests/oracle/multi_tensor_cases.h"
#include "tests/oracle/reading/case_file.h"
#include "tests/oracle/session/session.h"
#include "tests/oracle/tables/tables.h"

namespace oracle {
namespace {

namespace fs = std::filesystem;

using Player = void (*)(const CaseFile&, Report&);

// What plays a case, by its kind. A new kind is one more entry.
const std::map<std::string, Player>& player_registry() {
  static const std::map<std::string, Player> kRegistry = {
      {"train", play_case}, {"optimizer", play_case}, {"fp16_optimizer", play_case}, {"multi_tensor", play_multi_tensor_case}};
  return kRegistry;
}

std::vector<fs::path> sorted_entries(const fs::path& folder, const std::function<bool(const fs::path&)>& wanted) {
  if (!fs::is_directory(folder)) throw std::runtime_error(folder.string() + ": no such folder");
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (wanted(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  if (found.empty()) throw std::runtime_error(folder.string() + ": nothing here matches");
  return found;
}

}  // namespace

void use_recorded_arithmetic() {
  at::set_num_threads(1);
  constexpr int kKeepTheUsers = 0;
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", kKeepTheUsers);
}

bool matches(const std::string& name, const std::string& patterns) {
  std::istringstream list(patterns);
  for (std::string pattern; std::getline(list, pattern, ',');) {
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  }
  return false;
}

void replay_case(const fs::path& folder, Report& report) {
  const std::string name = folder.filename().string();
  std::optional<CaseFile> case_file;
  Player player = nullptr;
  report.begin(name, "");
  try {
    case_file.emplace(folder);
    const std::string kind = case_file->json().at("kind").as_string();
    auto found = player_registry().find(kind);
    if (found == player_registry().end()) return report.skip(name, "needs cases of kind " + kind);
    player = found->second;
  } catch (const std::exception& error) {
    report.fail("a readable case", "none", error.what());
    return report.end();
  }
  player(*case_file, report);
}

void replay_cases(const fs::path& folder, const std::string& only, Report& report) {
  const auto folders = sorted_entries(
      folder, [&](const fs::path& path) { return fs::exists(path / "case.json") && matches(path.filename().string(), only); });
  for (const auto& path : folders) replay_case(path, report);
}

void replay_tables(const fs::path& folder, const std::string& only, Report& report) {
  const auto files = sorted_entries(
      folder, [&](const fs::path& path) { return path.extension() == ".json" && matches(path.stem().string(), only); });
  for (const auto& path : files) replay_table(path, report);
}

}  // namespace oracle
