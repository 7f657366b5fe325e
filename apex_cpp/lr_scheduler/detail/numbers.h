#pragma once

#include <apex_cpp/lr_scheduler/scheduler.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// The numbers of schedulers: in formulas, and by name in a state.
namespace apex::lr_scheduler::detail {

constexpr double kPi = 3.14159265358979323846;  // Python's math.pi

/// A Python integer in an expression with floats.
inline double real(int64_t value) { return static_cast<double>(value); }

/// Errors: RuntimeError if the state has no such entry.
double entry(const LRScheduler::StateDict& state, const std::string& name);

/// Values of the parameter groups: entries "name_0", "name_1", …
void write_groups(LRScheduler::StateDict& state, const std::string& name, const std::vector<double>& values);
/// Errors: RuntimeError if the state has fewer entries than `groups`, ValueError if it has more.
std::vector<double> read_groups(const LRScheduler::StateDict& state, const std::string& name, size_t groups);

}  // namespace apex::lr_scheduler::detail
