#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <string>

#include "opt_levels/opt_level.h"
#include "tests/opt_levels/errors.h"

/// What the executable has stands before what a shared library has. The node is empty, as one of a version with other members.
YAML::Node YAML::Load(const std::string&) { return {}; }

namespace apex::opt_levels::testing {
namespace {

TEST(OtherYamlCpp, IsAnErrorWithTheRemedy) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    expect_error(Outcome::runtime_error, {"contains a different yaml-cpp", "-Wl,--exclude-libs,libyaml-cpp.a"},
                 [] { OptLevel::named("O2"); });
  }
}

TEST(OtherYamlCpp, IsAnErrorForUserTextsToo) {
  expect_error(Outcome::runtime_error, {"contains a different yaml-cpp"}, [] { OptLevel::from_yaml_string("opt_level: O1"); });
}

}  // namespace
}  // namespace apex::opt_levels::testing
