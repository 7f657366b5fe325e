// Programs on amp's interface, on the library and on the literal model of Apex's rules: after each call both have the same
// state.
#include <cstdlib>
#include <iostream>

#include "tests/fuzz/bytes.h"
#include "tests/fuzz/target.h"
#include "tests/state_machine/comparison.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace apex::test;
  // load_state_dict prints.
  [[maybe_unused]] static const bool quiet = [] { return std::cout.setstate(std::ios::failbit), true; }();
  apex::fuzz::Bytes input(data, bytes);
  Random random = [&input] { return uint32_t{input.next()}; };
  const auto config = random_config(input.one_of(kModelledLevels), random);
  const auto events = random_events(config, random);
  const std::string difference = run(config, events);
  if (difference.empty()) return 0;
  std::cerr << listing(config, events) << difference << "\n";
  std::abort();
}
