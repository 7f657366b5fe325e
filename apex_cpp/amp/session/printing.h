#pragma once

#include <string>

#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/session.h>

#include "opt_levels/opt_level.h"

// What amp tells on standard output, by verbosity (PRINT-*): 0 nothing, 1 the properties and skipped steps.
namespace apex::amp::detail {

/// Whether this process tells properties (it does): of several processes, the first alone does.
void let_print_properties(bool on);
/// The level, its properties before and after overrides (PRINT-01).
void print_properties(const opt_levels::OptLevel& level, const opt_levels::Settings& settings);
/// One line that tells how operators on 16-bit CPU tensors compute, and why.
void print_cpu_compute(const opt_levels::Settings& settings, c10::ScalarType type, bool in_float32, const std::string& reason);
/// One line for a step that was skipped: the loss, the gradient that overflowed and the scale before and from now on (SL-12).
void print_skipped_step(const Session& session, const Overflow& overflow, double scale_now);
/// One line, with the verbosity of the newest `initialize` and where properties are told.
void print_line(const std::string& text);

}  // namespace apex::amp::detail
