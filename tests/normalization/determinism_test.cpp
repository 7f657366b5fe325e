// The order of sums depends on the shape alone: the same bits with any number of threads and any instruction set.
#include "kernels/cpu/isa.h"
#include "tests/normalization/support.h"

namespace normalization_test {
namespace {

using apex::kernels::cpu::Isa;

struct Threads {
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before = at::get_num_threads();
};

struct UseIsa {
  explicit UseIsa(Isa isa) { apex::kernels::cpu::set_current_isa(isa); }
  ~UseIsa() { apex::kernels::cpu::set_current_isa(before); }
  Isa before = apex::kernels::cpu::current_isa();
};

class Bits : public ::testing::TestWithParam<Mix> {};

TEST_P(Bits, AreTheSameOnAnyNumberOfThreads) {
  for (const bool memory_efficient : {false, true}) {
    for (const auto& [rows, size] : std::vector<std::pair<int64_t, int64_t>>{{3, 9001}, {200, 1000}, {5000, 65}}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << size);
      Case c = random_case(GetParam(), rows, size);
      c.memory_efficient = memory_efficient;
      const auto on_threads = [&](int count) {
        const Threads use(count);
        return run(c);
      };
      const Result one = on_threads(1);
      expect_same_bits(on_threads(2), one);
      expect_same_bits(on_threads(4), one);
    }
  }
}

TEST_P(Bits, AreTheSameOnAnyInstructionSet) {
  for (const int64_t size : sizes()) {
    SCOPED_TRACE(size);
    Case c = random_case(GetParam(), 5, size);
    c.memory_efficient = size % 2 == 1;
    Result portable;
    {
      const UseIsa use(Isa::portable);
      portable = run(c);
    }
    for (const Isa isa : apex::kernels::cpu::kEveryIsa) {
      if (isa == Isa::portable || !apex::kernels::cpu::is_available(isa)) continue;
      SCOPED_TRACE(apex::kernels::cpu::name_of(isa));
      const UseIsa use(isa);
      expect_same_bits(run(c), portable);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Bits, ::testing::ValuesIn(all_mixes()), param_name);

}  // namespace
}  // namespace normalization_test
