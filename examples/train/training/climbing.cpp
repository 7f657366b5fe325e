#include "training/climbing.h"

#include <filesystem>
#include <limits>

#include <apex_cpp/files/csv.h>

#include "common/write_whole.h"
#include "errors.h"
#include "logging/csv_file.h"

namespace train {
namespace {

using apex::amp::OptLevel;

constexpr const char* kLevelsHeader = "epoch,step,from,to,back_to_step,reason";

bool is_name(const std::string& name_or_file) { return name_or_file.size() == 2 && name_or_file[0] == 'O'; }

OptLevel level_of(const std::string& name_or_file) {
  const auto read = [&] {
    return is_name(name_or_file) ? OptLevel::named(name_or_file) : OptLevel::from_yaml_file(name_or_file);
  };
  return as_user_error(read, "key 'climb_to': ");
}

}  // namespace

std::string findable_anywhere(const std::string& climb_to) {
  return climb_to.empty() || is_name(climb_to) ? climb_to : std::filesystem::absolute(climb_to).string();
}

std::vector<OptLevel> levels_to_climb(const Config& config) {
  if (!config.climbs()) return {};
  if (config.climb_to.empty()) return apex::amp::levels_above(config.level);
  const auto first = level_of(config.climb_to);
  auto levels = apex::amp::levels_above(first);
  levels.insert(levels.begin(), first);
  return levels;
}

void note_climb(const RunFolder& folder, const apex::amp::LevelClimb& climb, int64_t epoch, int64_t back_to_step) {
  const auto earlier = rows_up_to_step(folder.levels(), kLevelsHeader, std::numeric_limits<int64_t>::max());
  const auto table = first_rows(folder.levels(), kLevelsHeader, earlier) +
                     apex::csv_row(epoch, climb.diverged_at, climb.from.name(), climb.to.name(), back_to_step, climb.reason);
  common::write_whole(folder.levels(), table);
}

}  // namespace train
