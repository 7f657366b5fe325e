#pragma once
// A program on the library beside the literal model.
#include <array>
#include <string>
#include <vector>

#include "tests/state_machine/events.h"

namespace apex::test {

inline const std::array<const char*, 6> kModelledLevels = {"O0", "O1", "O2", "O3", "O5", "O6"};

/// Where the two differ, in words; empty if they agree to the end.
std::string run(const Config& config, const std::vector<Event>& events);

/// The program, a line for each event.
std::string listing(const Config& config, const std::vector<Event>& events);

}  // namespace apex::test
