#pragma once

#include <apex_cpp/lr_scheduler/scheduler.h>

#include <cstddef>
#include <string>
#include <vector>

namespace apex::lr_scheduler::detail {

/// Errors: RuntimeError if the state has no such entry.
double entry(const LRScheduler::StateDict& state, const std::string& name);

/// Values of the parameter groups: entries "name_0", "name_1", …
void write_groups(LRScheduler::StateDict& state, const std::string& name, const std::vector<double>& values);
/// Errors: RuntimeError if the state has fewer entries than `groups`, ValueError if it has more.
std::vector<double> read_groups(const LRScheduler::StateDict& state, const std::string& name, size_t groups);

}  // namespace apex::lr_scheduler::detail
