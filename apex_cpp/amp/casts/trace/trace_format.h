#pragma once

#include <string>
#include <vector>

#include <apex_cpp/amp/casts/trace/trace.h>

namespace apex::amp::detail {

std::string trace_table(const std::vector<TracedOp>& ops);
std::string trace_json(const std::vector<TracedOp>& ops);
std::string trace_csv(const std::vector<TracedOp>& ops);

/// Errors: RuntimeError naming a file that cannot be written.
void write_text(const std::string& path, const std::string& text);

}  // namespace apex::amp::detail
