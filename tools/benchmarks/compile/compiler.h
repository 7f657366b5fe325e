#pragma once

#include <string>
#include <vector>

namespace bench::compile {

/// Runs a command and returns the CPU time, in nanoseconds, of the command and its children. Waiting for other work on the
/// machine does not count. Errors: RuntimeError, naming the command, if it fails.
double processor_nanoseconds(const std::vector<std::string>& command);

/// The compiler and flags of this build; append the arguments that name the source.
std::vector<std::string> compiler();

}  // namespace bench::compile
