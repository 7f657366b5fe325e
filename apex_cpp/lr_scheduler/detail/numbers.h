#pragma once

#include <apex_cpp/lr_scheduler/scheduler.h>

#include <cstddef>
#include <cstdint>
#include <functional>
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

/// The options that the steps of a group read. They stay one object when a handle or LARC takes the optimizer's groups.
const torch::optim::OptimizerOptions& options_in_use(const torch::optim::OptimizerOptions& options);
/// Calls `write` with the options that the steps of a group read. A write of other options than the rate into an original's
/// options would carry all of these over the handle's.
void write_options(torch::optim::OptimizerOptions& options, const std::function<void(torch::optim::OptimizerOptions&)>& write);

}  // namespace apex::lr_scheduler::detail
