#pragma once
#include <cstdlib>
#include <string>

namespace apex::test {

/// How often a test of determinism trains. tools/test --all asks for 100.
inline int repetitions() {
  const char* wanted = std::getenv("APEX_CPP_REPETITIONS");
  return wanted ? std::stoi(wanted) : 3;
}

}  // namespace apex::test
