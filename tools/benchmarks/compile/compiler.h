#pragma once

#include <string>
#include <vector>

namespace bench::compile {

/// Runs a command and waits for it: nanoseconds of processor time that it and what it started took. Other work on the machine
/// makes it wait, which does not count. Errors: RuntimeError with the command where it fails.
double processor_nanoseconds(const std::vector<std::string>& command);

/// The compiler and the flags of this build, to be followed by what is to be compiled.
std::vector<std::string> compiler();

}  // namespace bench::compile
