// Training that diverges returns to its last checkpoint and continues at the level above, as if the failed steps had not
// happened.
#include <apex_cpp/amp/level_fallback.h>

#include <algorithm>

#include "tests/amp/support.h"
#include "tests/checkpoint/resume/training.h"

namespace apex::test {
namespace {

constexpr int kSteps = 24, kFault = 6, kEvery = 4, kPatience = 12;

/// How training at one level fails from step kFault on.
enum class Collapse { nan_weight, inf_weight, inf_gradients, tiny_scale };

void spoil(Training& training, Collapse collapse) {
  const torch::NoGradGuard no_grad;
  auto& weight = training.model->fc1->weight;
  if (collapse == Collapse::nan_weight) {
    weight.view(-1)[3].fill_(kNan);
  } else if (collapse == Collapse::inf_weight) {
    weight.view(-1)[3].fill_(kInf);
  } else {
    weight.register_hook([](const torch::Tensor& grad) { return torch::full_like(grad, kInf); });
  }
}

std::string name_of(Collapse collapse) {
  constexpr const char* kNames[] = {"nan_weight", "inf_weight", "inf_gradients", "tiny_scale"};
  return kNames[static_cast<int>(collapse)];
}

amp::DivergenceOptions patience_for(Collapse collapse) {
  // Only the loss scale reveals a failure that lasts longer than the patience.
  return collapse == Collapse::tiny_scale ? amp::DivergenceOptions().patience(1000).lowest_loss_scale(1024)
                                          : amp::DivergenceOptions().patience(kPatience);
}

/// A run with its checkpoint that fails at some levels.
class FallbackRun {
 public:
  FallbackRun(std::vector<std::string> bad_levels, Collapse collapse)
      : bad_levels_(std::move(bad_levels)),
        collapse_(collapse),
        fallback(amp::OptLevel(bad_levels_.front()), patience_for(collapse)) {}

  void train() {
    do {
      train_at(fallback.level().name());
    } while (fallback.climb());
  }

  /// The result of the same steps in a run that only loaded the checkpoint.
  std::string expected() {
    Training training(kOptimizer, fallback.level().name());
    const auto step = training.load(path_).metadata.at("step").to_int();
    training.run(static_cast<int>(step), kSteps);
    return result_of(training);
  }

 private:
  static constexpr const char* kOptimizer = "AdamW";

  static std::string result_of(Training& training) {
    const Folder folder;
    training.save(folder / "end");
    return training.bytes() + read_bytes(folder / "end");
  }

  bool is_bad(const std::string& level) const {
    return std::find(bad_levels_.begin(), bad_levels_.end(), level) != bad_levels_.end();
  }

  void save(const Training& training, int step) {
    training.save(path_, {{"step", step}});
    saved_step = step;
  }

  void train_at(const std::string& level) {
    Training training(kOptimizer, level);
    int step = 0;
    if (fallback.has_climbed()) {
      step = static_cast<int>(training.load(path_).metadata.at("step").to_int());
    } else {
      save(training, 0);
    }
    const bool bad = is_bad(level);
    bool spoilt = false;
    while (step < kSteps && !fallback.diverged()) {
      if (bad && !spoilt && step >= kFault) spoil(training, collapse_), spoilt = true;
      training.run(step, step + 1);
      fallback.update(++step, training.losses.back(), amp::step_result(*training.optimizer));
      // The last checkpoint of a failed level is kept for the comparison.
      if (bad && step % kEvery == 0 && fallback.is_good(training.net, training.optimizer)) save(training, step);
    }
    if (!fallback.diverged()) result = result_of(training);
  }

  std::vector<std::string> bad_levels_;
  Collapse collapse_;
  Folder folder_;
  std::string path_ = folder_ / "run.ckpt";

 public:
  amp::LevelFallback fallback;
  std::string result;
  int saved_step = -1;
};

struct EveryCollapse : AmpTest, ::testing::WithParamInterface<std::tuple<const char*, Collapse>> {};

TEST_P(EveryCollapse, ContinuesAtTheLevelAboveAsFromTheCheckpointAlone) {
  const auto& [level, collapse] = GetParam();
  FallbackRun run({level}, collapse);
  run.train();
  ASSERT_EQ(run.fallback.climbs().size(), 1u);
  EXPECT_EQ(run.fallback.climbs()[0].to, amp::levels_above(level)[0]);
  EXPECT_GE(run.saved_step, kEvery) << "the checkpoint before the fault";
  EXPECT_EQ(run.result, run.expected());
}

TEST_P(EveryCollapse, ClimbsAsManyLevelsAsNeeded) {
  const auto& [level, collapse] = GetParam();
  std::vector<std::string> bad{level};
  for (const auto& above : amp::levels_above(level))
    if (above.name() != "O0") bad.push_back(above.name());
  FallbackRun run(bad, collapse);
  run.train();
  EXPECT_EQ(run.fallback.climbs().size(), bad.size());
  EXPECT_EQ(run.fallback.level().name(), "O0");
  EXPECT_EQ(run.result, run.expected());
}

std::string name_of_case(const ::testing::TestParamInfo<EveryCollapse::ParamType>& info) {
  return std::string(std::get<0>(info.param)) + "_" + name_of(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Levels, EveryCollapse,
                         ::testing::Combine(::testing::Values("O1", "O2", "O3", "O4", "O5", "O6"),
                                            ::testing::Values(Collapse::nan_weight, Collapse::inf_weight,
                                                              Collapse::inf_gradients)),
                         name_of_case);
// Other levels have static loss scales.
INSTANTIATE_TEST_SUITE_P(DynamicScales, EveryCollapse,
                         ::testing::Combine(::testing::Values("O1", "O2"), ::testing::Values(Collapse::tiny_scale)),
                         name_of_case);

struct Fallback : AmpTest {};

TEST_F(Fallback, EndsAtTheHighestLevel) {
  FallbackRun run({"O0"}, Collapse::nan_weight);
  run.train();
  EXPECT_TRUE(run.fallback.diverged());
  EXPECT_TRUE(run.fallback.climbs().empty());
}

// At the level above, a weight is its former master with all 32 bits.
TEST_F(Fallback, MastersBecomeWeightsBitwise) {
  const Folder folder;
  std::vector<torch::Tensor> masters;
  {
    Training training("FusedAdam", "O2");
    training.run(0, 5);
    for (const auto& master : amp::master_params(*training.optimizer)) masters.push_back(master.detach().clone());
    training.save(folder / "ckpt");
  }
  for (const char* level : {"O1", "O0"}) {
    Training above("FusedAdam", level);
    above.load(folder / "ckpt");
    const auto weights = amp::master_params(*above.optimizer);
    ASSERT_EQ(weights.size(), masters.size());
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(bytes_of(weights[i]), bytes_of(masters[i])) << level << " " << i;
  }
}

TEST_F(Fallback, RejectsACheckpointOfNonFiniteState) {
  const auto reason_after = [](const std::function<void(Training&)>& spoils) {
    Training training("AdamW", "O3");
    training.run(0, 2);
    amp::LevelFallback fallback("O3");
    fallback.update(2, 1.0, {});
    EXPECT_TRUE(fallback.is_good(training.net, training.optimizer));
    const torch::NoGradGuard no_grad;
    spoils(training);
    EXPECT_FALSE(fallback.is_good(training.net, training.optimizer));
    return fallback.reason();
  };
  EXPECT_EQ(reason_after([](Training& training) { training.model->fc2->bias[0] = kInf; }),
            "parameter 'fc2.bias' of the model holds Inf or NaN after step 2");
  EXPECT_EQ(reason_after([](Training& training) { training.model->bn->running_var[0] = kNan; }),
            "buffer 'bn.running_var' of the model holds Inf or NaN after step 2");
  EXPECT_EQ(reason_after([](Training& training) {
              auto& state = static_cast<torch::optim::AdamWParamState&>(*training.optimizer->state().begin()->second);
              state.exp_avg_sq().fill_(kInf);
            }),
            "the state of an optimizer holds Inf or NaN after step 2");
}

// LBFGS keeps some state in lists.
TEST_F(Fallback, RejectsACheckpointAfterTenSkippedStepsInARow) {
  Training training("AdamW", "O1");
  amp::LevelFallback fallback("O1");
  amp::StepResult skipped;
  skipped.skipped = true;
  skipped.loss_scale_before = 65536;
  for (int step = 1; step <= 10; ++step) {
    EXPECT_TRUE(fallback.is_good(training.net, training.optimizer)) << step;
    fallback.update(step, 1.0, skipped);
  }
  EXPECT_FALSE(fallback.is_good(training.net, training.optimizer));
  EXPECT_FALSE(fallback.diverged());
  fallback.update(11, 1.0, {});
  EXPECT_TRUE(fallback.is_good(training.net, training.optimizer));
}

TEST_F(Fallback, RejectsACheckpointOfNonFiniteLbfgsDirections) {
  Training training("LBFGS", "O1");
  training.run(0, 3);
  amp::LevelFallback fallback("O1");
  EXPECT_TRUE(fallback.is_good(training.net, training.optimizer)) << fallback.reason();
  auto& state = static_cast<torch::optim::LBFGSParamState&>(*training.optimizer->state().begin()->second);
  ASSERT_FALSE(state.old_dirs().empty());
  state.old_dirs().back()[0] = kNan;
  EXPECT_FALSE(fallback.is_good(training.net, training.optimizer));
  EXPECT_EQ(fallback.reason(), "the state of an optimizer holds Inf or NaN after step 0");
}

// For example a mask, which is not trained.
TEST_F(Fallback, AcceptsACheckpointWithInfInAFrozenParameter) {
  Training training("AdamW", "O2");
  amp::LevelFallback fallback("O2");
  const torch::NoGradGuard no_grad;
  auto& mask = training.model->fc2->bias;
  mask.requires_grad_(false).fill_(-kInf);
  EXPECT_TRUE(fallback.is_good(training.net, training.optimizer)) << fallback.reason();
  mask[0] = kNan;
  EXPECT_FALSE(fallback.is_good(training.net, training.optimizer));
}

TEST_F(Fallback, ClimbsWhenTheProgramGivesUp) {
  amp::LevelFallback fallback("O1");
  EXPECT_THROW(fallback.give_up(""), c10::ValueError);
  fallback.give_up("accuracy fell");
  fallback.give_up("accuracy fell again");
  EXPECT_TRUE(fallback.update(7, kNan, {}));
  EXPECT_EQ(fallback.reason(), "accuracy fell");
  EXPECT_TRUE(fallback.climb());
  EXPECT_EQ(fallback.climbs()[0].reason, "accuracy fell");
}

TEST_F(Fallback, AcceptsTheProgramsOwnLevels) {
  const auto own = amp::OptLevel::from_yaml_string("{opt_level: O2, cast_model_outputs: float32}");
  amp::LevelFallback fallback("O2", {own});
  EXPECT_FALSE(fallback.climb()) << "nothing has diverged";
  EXPECT_TRUE(fallback.update(7, kNan, {}));
  EXPECT_TRUE(fallback.climb());
  EXPECT_EQ(fallback.level(), own);
  EXPECT_EQ(fallback.climbs()[0].diverged_at, 7);
  EXPECT_EQ(fallback.climbs()[0].reason, "the loss became nan at step 7");
  EXPECT_FALSE(fallback.diverged());
}

// ---- when training counts as diverged ----

amp::StepResult skipped_at(double loss_scale) {
  amp::StepResult result;
  result.skipped = true;
  result.loss_scale_before = loss_scale;
  return result;
}

TEST(Divergence, ANonFiniteLossWithoutASkippedStep) {
  amp::DivergenceDetector detector;
  EXPECT_FALSE(detector.update(6, kInf, skipped_at(65536)));
  EXPECT_TRUE(detector.update(7, kInf, {}));
  EXPECT_EQ(detector.reason(), "the loss became inf at step 7");
}

TEST(Divergence, ManyOverflowsInARow) {
  amp::DivergenceDetector detector;
  for (int i = 1; i < 50; ++i) EXPECT_FALSE(detector.update(i, 1.0, skipped_at(65536)));
  EXPECT_FALSE(detector.update(50, 1.0, {}));
  for (int i = 51; i < 100; ++i) EXPECT_FALSE(detector.update(i, 1.0, skipped_at(65536)));
  EXPECT_TRUE(detector.update(100, 1.0, skipped_at(65536)));
  EXPECT_EQ(detector.reason(), "50 steps in a row overflowed up to step 100");
}

TEST(Divergence, OverflowAtATinyLossScale) {
  amp::DivergenceDetector detector;
  EXPECT_FALSE(detector.update(1, 1.0, skipped_at(2e-4)));
  EXPECT_FALSE(detector.update(2, 1.0, {}));
  EXPECT_TRUE(detector.update(3, 1.0, skipped_at(1e-4)));
  EXPECT_EQ(detector.reason(), "step 3 overflowed at a loss scale of 0.0001");
  EXPECT_THROW(amp::DivergenceDetector(amp::DivergenceOptions().patience(0)), c10::ValueError);
  EXPECT_NO_THROW(amp::DivergenceDetector(amp::DivergenceOptions().lowest_loss_scale(0)));
  for (const double lowest : {-1.0, double{kInf}, double{kNan}}) {
    EXPECT_THROW(amp::DivergenceDetector(amp::DivergenceOptions().lowest_loss_scale(lowest)), c10::ValueError) << lowest;
  }
}

}  // namespace
}  // namespace apex::test
