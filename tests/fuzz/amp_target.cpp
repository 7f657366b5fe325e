// Programs on amp's interface, on the library and on the literal model of Apex's rules: after each call both have the same
// state.
#include <cstdlib>
#include <iostream>

#include "tests/fuzz/bytes.h"
#include "tests/fuzz/target.h"
#include "tests/state_machine/literal_amp.h"
#include "tests/state_machine/product.h"

namespace apex::fuzz {
namespace {

[[noreturn]] void fail(const test::Config& config, const std::vector<test::Event>& events, size_t last,
                       const std::string& how) {
  std::cerr << test::describe(config) << "\n";
  for (size_t i = 0; i <= last; ++i) std::cerr << "  " << i + 1 << ". " << test::describe(events[i]) << "\n";
  std::cerr << how << "\n";
  std::abort();
}

void run(const test::Config& config, const std::vector<test::Event>& events) {
  test::LiteralAmp model(config);
  test::Product product(config);
  for (size_t i = 0; i < events.size(); ++i) {
    model.apply(events[i]);
    product.apply(events[i]);
    const std::string difference = test::difference(model.state(), product.state());
    if (!difference.empty()) fail(config, events, i, difference);
  }
}

}  // namespace
}  // namespace apex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  // load_state_dict prints.
  [[maybe_unused]] static const bool quiet = [] { return std::cout.setstate(std::ios::failbit), true; }();
  static const std::vector<std::string> kLevels = {"O0", "O1", "O2", "O3", "O5"};
  apex::fuzz::Bytes input(data, bytes);
  apex::test::Random random = [&input] { return uint32_t{input.next()}; };
  const auto config = apex::test::random_config(input.one_of(kLevels), random);
  apex::fuzz::run(config, apex::test::random_events(config, random));
  return 0;
}
