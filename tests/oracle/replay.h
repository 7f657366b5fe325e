#pragma once

#include <filesystem>
#include <string>

#include "tests/oracle/verdict/report.h"

namespace oracle {

// Computes as the values were recorded: with one thread, and with oneDNN's float16 arithmetic of a CPU that has no float16
// instructions. To be called before the first tensor operation.
void use_recorded_arithmetic();

// Replays every case folder of `folder` whose name matches `only`: comma-separated patterns with * and ?. Throws
// std::runtime_error if there is no such case, so that a misspelt pattern does not pass.
void replay_cases(const std::filesystem::path& folder, const std::string& only, Report& report);

// Replays one case folder.
void replay_case(const std::filesystem::path& folder, Report& report);

// Replays the tables of `folder` (files NAME.json) whose NAME matches `only`. Throws like `replay_cases`.
void replay_tables(const std::filesystem::path& folder, const std::string& only, Report& report);

bool matches(const std::string& name, const std::string& patterns);

}  // namespace oracle
