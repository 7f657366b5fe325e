#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <string>

#include "tests/oracle/reading/json.h"
#include "tests/oracle/verdict/report.h"

namespace oracle {

// The type that a table calls "half", "bfloat16", "float", "double", "int64" or "bool". Throws NeedsFeature for another name.
at::ScalarType input_type(const std::string& name);

// Replays one table, each row being an item of the report. What kind of table it is shows in its members.
void replay_table(const std::filesystem::path& path, Report& report);

// initialize and argument errors: call, exception type.
void replay_error_table(const Json& table, Report& report);
// amp's scaler alone, driven by overflow patterns.
void replay_scaler_table(const Json& table, Report& report);
// Network conversion, parameter lists, legacy scaler.
void replay_fp16_utils_table(const Json& table, Report& report);
// What O1 does to each function of torch, and to some modules.
void replay_o1_table(const Json& table, Report& report);
// Wrapped callables and registered operators.
void replay_user_registry_table(const Json& table, Report& report);

}  // namespace oracle
