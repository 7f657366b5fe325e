// Repeated set-ups leak no memory, neither unreachable nor retained (BUG-09).
#include <apex_cpp/optimizers.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <thread>

#include "kernels/plan/reuse.h"
#include "tests/amp/optimizers.h"
#include "tests/reuse/memory.h"

namespace apex::test {
namespace {

struct Scenario {
  const char* name;
  std::function<void(const std::string& level)> run;
};
std::ostream& operator<<(std::ostream& out, const Scenario& scenario) { return out << scenario.name; }

auto sgd_over(Mlp& model, const std::string& level, amp::InitializeOptions options = quiet().loss_scale(8.0)) {
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  return amp::initialize(model, optimizer, level, options);
}

void whole_run(const std::string& level) {
  Mlp model;
  auto [net, opt] = sgd_over(model, level);
  for (int i = 0; i < 2; ++i) train_step(net, opt, features());
  amp::clip_grad_norm_(opt, 1.0);
  amp::reset();
}

void without_reset(const std::string& level) {
  Mlp model;
  auto [net, opt] = sgd_over(model, level);
  train_step(net, opt, features());
}

void fused_order(const std::string& level) {
  Mlp model;
  optimizers::FusedAdam optimizer(model->parameters(), optimizers::FusedAdamOptions(0.1).materialize_master_grads(false));
  auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
  for (int i = 0; i < 2; ++i) train_step(net, opt, features());
}

void initialized_again(const std::string& level) {
  Mlp model;
  auto [net, opt] = sgd_over(model, level);
  train_step(net, opt, features());
  auto [net2, opt2] = sgd_over(model, level);
  train_step(net2, opt2, features());
}

void overflow(const std::string& level) {
  Mlp model;
  auto [net, opt] = sgd_over(model, level, quiet().loss_scale("dynamic"));
  { amp::scale_loss(net->forward(features()).sum() * std::numeric_limits<float>::infinity(), opt).backward(); }
  opt.step();
}

void thrown_in_a_block(const std::string& level) {
  Mlp model;
  auto [net, opt] = sgd_over(model, level);
  for (const bool delayed : {false, true, true}) {
    try {
      auto scaled = amp::scale_loss(net->forward(features()).sum(), opt, amp::ScaleLossOptions().delay_unscale(delayed));
      scaled.backward();
      if (delayed) throw std::runtime_error("the program's own");
    } catch (const std::runtime_error&) {
    }
  }
}

void refused(const std::string& level) {
  Mlp model;
  auto [net, opt] = sgd_over(model, level);
  EXPECT_ANY_THROW((void)amp::initialize(model, opt, level, quiet()));
  EXPECT_ANY_THROW((void)amp::scale_loss(net->forward(features()).sum(), opt, 7));
}

class Leaks : public AmpTest, public ::testing::WithParamInterface<std::tuple<Scenario, std::string>> {
 protected:
  /// Once for all: a check takes a good part of a second.
  static void TearDownTestSuite() { EXPECT_NE(check_for_leaks(), LeakCheck::leaks); }

  void repeat(int times) {
    const auto& [scenario, level] = GetParam();
    for (int i = 0; i < times; ++i) scenario.run(level);
    amp::reset();  // the last session, and what was remembered of tensors
  }
};

TEST_P(Leaks, ManyRunsLeakNothing) {
  {
    const AllowLeaks once;
    repeat(10);  // what is allocated once: thread pools, operator tables, the cast rules' slots
  }
  constexpr int kRuns = 60;
  const int64_t before = bytes_in_use();
  repeat(kRuns);
  const int64_t after = bytes_in_use();
  // A forgotten tensor is a StorageImpl and a TensorImpl, over 200 bytes; a registry entry over 40. One for each run would be
  // more than this allows, while tables that double their buckets once are not.
  EXPECT_LT(after, before + 40 * kRuns) << "bytes in use before: " << before;
}

// A reset would free what each `initialize` had left behind. The newest session lives in both counts. Entries of freed tensors
// stay until a map has 256 of them, in all maps some 100 kB; an earlier session takes 50 kB.
TEST_F(AmpTest, EarlierSessionsAreFreedWithoutAReset) {
  constexpr int kRuns = 300;
  for (const auto& run : {without_reset, fused_order, initialized_again, overflow}) {
    for (int i = 0; i < 10; ++i) run("O2");
    const int64_t before = bytes_in_use();
    for (int i = 0; i < kRuns; ++i) run("O2");
    EXPECT_LT(bytes_in_use(), before + 200000);
  }
}

// Of the calls of kernels, which serve only the tensors that were there.
TEST(AmpReset, KeepsNothingOfRecentCalls) {
  namespace plan = apex::kernels::plan;
  const std::vector<torch::Tensor> list = {torch::ones({3})};
  const std::weak_ptr<const plan::Plan> kept = plan::checked_groups("a test", {{"in", list, plan::Access::read}});
  EXPECT_FALSE(kept.expired());
  amp::reset();
  EXPECT_TRUE(kept.expired());
}

TEST(BytesInUse, CountAllocatedMemory) {
  const int64_t before = bytes_in_use();
  const std::vector<std::string> held(100, std::string(100, 'x'));
  EXPECT_GE(bytes_in_use(), before + 100 * 100);
  EXPECT_EQ(held.size(), 100u);
}

constexpr const char* kNoCheck =
    "LeakSanitizer cannot run here (not linked, or the container forbids ptrace); bytes in use are counted all the same";

TEST(LeakSanitizer, DetectsAnUnreachableAllocation) {
  if (check_for_leaks() == LeakCheck::unavailable) GTEST_SKIP() << kNoCheck;
  uintptr_t hidden = 0;
  std::thread([&] { hidden = ~reinterpret_cast<uintptr_t>(std::malloc(64)); }).join();  // no stack keeps the pointer
  EXPECT_EQ(check_for_leaks(), LeakCheck::leaks);
  std::free(reinterpret_cast<void*>(~hidden));
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Scenario, std::string>>& test) {
  return std::string(std::get<0>(test.param).name) + "_" + std::get<1>(test.param);
}
INSTANTIATE_TEST_SUITE_P(
    All, Leaks,
    ::testing::Combine(::testing::Values(Scenario{"WholeRun", whole_run}, Scenario{"WithoutReset", without_reset},
                                         Scenario{"FusedUnscale", fused_order}, Scenario{"InitializedAgain", initialized_again},
                                         Scenario{"Overflow", overflow}, Scenario{"ThrownInABlock", thrown_in_a_block},
                                         Scenario{"Refused", refused}),
                       ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6")),
    name_of);

}  // namespace
}  // namespace apex::test
