// GradScaler: its options, and saving and loading its state. After PyTorch's test_grad_scaling_state_dict.
#include <sstream>

#include "tests/amp/warnings.h"
#include "tests/torch_amp/grad_scaler_support.h"

namespace apex::test {
namespace {

using amp::GradScaler;
using amp::GradScalerOptions;

// ---- construction

TEST(GradScaler, ConstructorHasPythonsArgumentOrder) {
  GradScaler scaler("cpu", 128.0, 3.0, 0.25, 5, true);
  EXPECT_EQ(scaler.get_scale(), 128.0);
  EXPECT_EQ(scaler.get_growth_factor(), 3.0);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.25);
  EXPECT_EQ(scaler.get_growth_interval(), 5);
  EXPECT_TRUE(scaler.is_enabled());
  scaler.set_growth_factor(4.0);
  scaler.set_backoff_factor(0.5);
  scaler.set_growth_interval(6);
  EXPECT_EQ(scaler.get_growth_factor(), 4.0);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.5);
  EXPECT_EQ(scaler.get_growth_interval(), 6);
}

TEST(GradScaler, ConstructorDefaultsAreTheDocumentedOnes) {
  const GradScalerOptions defaults;
  EXPECT_EQ(defaults.device(), torch::kCUDA);
  EXPECT_EQ(defaults.init_scale(), 65536.0);
  EXPECT_EQ(defaults.growth_factor(), 2.0);
  EXPECT_EQ(defaults.backoff_factor(), 0.5);
  EXPECT_EQ(defaults.growth_interval(), 2000);
  EXPECT_TRUE(defaults.enabled());
}

TEST(GradScaler, ConstructorRejectsInvalidFactors) {
  EXPECT_TRUE(contains(message_of([] { GradScaler(cpu().growth_factor(1.0)); }), "growth_factor must be above 1, got 1"));
  EXPECT_TRUE(contains(message_of([] { GradScaler(cpu().backoff_factor(1.0)); }), "backoff_factor must be below 1, got 1"));
  for (const double factor : {0.0, -0.5, double{NAN}}) EXPECT_THROW(GradScaler(cpu().backoff_factor(factor)), c10::Error);
  for (const double scale : {0.0, 1e-50, 1e39}) EXPECT_THROW(GradScaler(cpu().init_scale(scale)), c10::ValueError);
  EXPECT_THROW(GradScaler(cpu().growth_interval(0)), c10::ValueError);
  EXPECT_THROW(GradScaler("tpu"), c10::Error);
  EXPECT_TRUE(contains(message_of([] { GradScaler("cuda:0"); }), "Leave the index out"));
  EXPECT_NO_THROW(GradScaler(cpu().growth_factor(1.0).enabled(false)));
}

TEST(GradScaler, ForCudaWithoutAGpuWarnsAndDisablesItself) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "needs a machine without a CUDA device";
  CaughtWarnings warnings;
  EXPECT_FALSE(GradScaler().is_enabled());
  EXPECT_TRUE(contains(warnings.text, "no CUDA device"));
  warnings.text.clear();
  EXPECT_FALSE(GradScaler(GradScalerOptions().enabled(false)).is_enabled());
  EXPECT_EQ(warnings.text, "");
}

// ---- upstream: test_grad_scaling_state_dict

TEST(GradScaler, GradScalingStateDictLoadsIntoFreshAndRunningScalers) {
  for (const bool running : {false, true}) {
    GradScaler s0("cpu", 3.0, 4.0, 0.5, 2), s1("cpu", 6.0, 7.0, 0.8, 1);
    if (running) start(s1);
    s1.load_state_dict(s0.state_dict());
    EXPECT_EQ(s1.get_scale(), 3.0);
    EXPECT_EQ(s1.get_growth_factor(), 4.0);
    EXPECT_EQ(s1.get_backoff_factor(), 0.5);
    EXPECT_EQ(s1.get_growth_interval(), 2);
    EXPECT_EQ(s1.get_growth_tracker(), 0);
    start(s1);
    EXPECT_EQ(s1.get_scale(), 3.0) << "and it stays so when the scale is made";
  }
}

TEST(GradScaler, StateDictHasPythonsKeysAndTheRunningCount) {
  GradScaler scaler("cpu", 4.0, 2.0, 0.5, 10);
  auto optimizer = sgd({param_with_grad(torch::ones({1}))});
  start(scaler);
  scaler.step(optimizer);
  scaler.update();
  const auto state = scaler.state_dict();
  EXPECT_EQ(state.keys(),
            (std::vector<std::string>{"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}));
  EXPECT_EQ(state.values(), (std::vector<double>{4, 2, 0.5, 10, 1}));
  GradScaler resumed(cpu());
  resumed.load_state_dict(state);
  EXPECT_EQ(resumed.get_growth_tracker(), 1);
}

// torch's update lets the scale grow when the count is the interval, and not past it.
TEST(GradScaler, GrowsIfTheCountIsBeyondTheInterval) {
  for (const bool loaded : {true, false}) {
    GradScaler scaler("cpu", 4.0, 2.0, 0.5, 10);
    auto optimizer = sgd({param_with_grad(torch::ones({1}))});
    const auto clean_step = [&] {
      scaler.step(optimizer);
      scaler.update();
    };
    start(scaler);
    for (int i = 0; i < 5; ++i) clean_step();
    if (loaded) {
      auto state = scaler.state_dict();
      state["growth_interval"] = 3;
      scaler.load_state_dict(state);
    } else {
      scaler.set_growth_interval(3);
    }
    EXPECT_EQ(scaler.get_growth_tracker(), 5);
    clean_step();
    EXPECT_EQ(scaler.get_scale(), 8.0) << loaded;
    EXPECT_EQ(scaler.get_growth_tracker(), 0);
    for (int i = 0; i < 3; ++i) clean_step();
    EXPECT_EQ(scaler.get_scale(), 16.0) << "the new interval holds from then on";
  }
}

TEST(GradScaler, LoadStateDictRefusesAnEmptyOrIncompleteState) {
  GradScaler scaler(cpu());
  EXPECT_TRUE(contains(message_of([&] { scaler.load_state_dict(GradScaler::StateDict()); }), "The source state dict is empty"));
  GradScaler::StateDict state;
  state.insert("scale", 8.0);
  EXPECT_TRUE(contains(message_of([&] { scaler.load_state_dict(state); }), "the state has no 'growth_factor'"));
  auto nan = scaler.state_dict();
  nan["scale"] = NAN;
  EXPECT_THROW(scaler.load_state_dict(nan), c10::ValueError);
  EXPECT_EQ(scaler.get_scale(), 65536.0);
}

TEST(GradScaler, RefusesNumbersThatEndTrainingAndChangesNothing) {
  GradScaler scaler("cpu", 8.0);
  start(scaler);
  const auto before = scaler.state_dict().values();
  EXPECT_THROW(scaler.set_backoff_factor(0.0), c10::Error);
  EXPECT_THROW(scaler.set_growth_factor(0.5), c10::Error);
  EXPECT_THROW(scaler.set_growth_interval(0), c10::ValueError);
  const GradScaler::StateDict fits = GradScaler("cpu", 2.0, 3.0, 0.25, 7).state_dict();
  const std::vector<std::pair<std::string, double>> wrong{
      {"_growth_tracker", 5e9}, {"_growth_tracker", NAN},   {"_growth_tracker", -1}, {"_growth_tracker", 0.5},
      {"growth_interval", 0},   {"growth_interval", 1e300}, {"backoff_factor", 0},   {"scale", 1e-50}};
  for (const auto& [key, value] : wrong) {
    auto state = fits;
    state[key] = value;
    EXPECT_THROW(scaler.load_state_dict(state), c10::Error) << key << " " << value;
    EXPECT_EQ(scaler.state_dict().values(), before) << key << " " << value;
  }
  scaler.load_state_dict(fits);
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

TEST(GradScaler, AnIntervalBeyond32BitsIsTaken) {
  GradScaler scaler("cpu", 8.0);
  auto optimizer = sgd({param_with_grad(torch::ones({1}))});
  start(scaler);
  scaler.set_growth_interval(int64_t{1} << 40);
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_growth_tracker(), 1);
  EXPECT_EQ(scaler.get_scale(), 8.0);
}

TEST(GradScaler, SavesToAndLoadsFromArchivesBetweenIterationsOnly) {
  GradScaler scaler("cpu", 12.0, 3.0, 0.25, 7), loaded(cpu());
  auto optimizer = sgd({param_with_grad(torch::ones({1}))});
  start(scaler);
  std::stringstream stream;
  torch::save(scaler, stream);
  torch::load(loaded, stream);
  EXPECT_EQ(loaded.state_dict().values(), scaler.state_dict().values());
  scaler.unscale_(optimizer);
  std::ostringstream middle;
  EXPECT_TRUE(contains(message_of([&] { torch::save(scaler, middle); }), "at the beginning of an iteration"));
  std::stringstream of_disabled;
  torch::save(GradScaler(cpu().enabled(false)), of_disabled);
  EXPECT_TRUE(contains(message_of([&] { torch::load(loaded, of_disabled); }), "The source state dict is empty"));
}

TEST(GradScaler, AnArchiveOfSomethingElseIsAnErrorThatNamesItsEntry) {
  torch::serialize::OutputArchive weights;
  weights.write("scale", torch::ones({2}));
  std::stringstream stream;
  weights.save_to(stream);
  GradScaler scaler(cpu());
  EXPECT_TRUE(contains(message_of([&] { torch::load(scaler, stream); }), "entry 'scale' is not the state of a GradScaler"));
  EXPECT_EQ(scaler.get_scale(), 65536.0);
}

}  // namespace
}  // namespace apex::test
