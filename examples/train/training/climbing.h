#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <apex_cpp/amp/level_fallback.h>

#include "config/config.h"
#include "logging/run_folder.h"

namespace train {

/// `climb_to` for a run folder, which may be gone on with from any working directory: a file by its absolute path.
std::string findable_anywhere(const std::string& climb_to);

/// The levels at which a run that diverges goes on, one after the other; none where it stops. Throws UserError where
/// `config.climb_to` is neither a level nor a level's file.
std::vector<apex::amp::OptLevel> levels_to_climb(const Config& config);

/// Notes in the folder's levels.csv that the run left its level in epoch `epoch`, for which, and the step of the checkpoint to
/// which it went back. The file is replaced as a whole. Throws UserError where it cannot be written.
void note_climb(const RunFolder& folder, const apex::amp::LevelClimb& climb, int64_t epoch, int64_t back_to_step);

}  // namespace train
