#pragma once
// A program on the library beside the literal model.
#include <string>
#include <vector>

#include "tests/state_machine/events.h"

namespace apex::test {

/// Where the two differ, in words; empty if they agree to the end.
std::string run(const Config& config, const std::vector<Event>& events);

/// The program, a line for each event.
std::string listing(const Config& config, const std::vector<Event>& events);

}  // namespace apex::test
