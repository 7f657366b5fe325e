// Runs that diverge: their exit code, and how `on_divergence: climb` continues.
#include "program.h"

namespace {

class ProgramThatDiverges : public Program {};

TEST_F(ProgramThatDiverges, DivergenceHasItsOwnExitCode) {
  scratch_.write("c.yaml", config("O3", "{type: SGD, lr: 900, momentum: 1}"));
  const auto ended = run("c.yaml --run-dir r");
  EXPECT_EQ(ended.code, 3) << ended.out;
  EXPECT_NE(ended.error.find("training diverged: the loss became"), std::string::npos) << ended.error;
  EXPECT_NE(ended.out.find("  loss nan  scale "), std::string::npos) << ended.out;
  EXPECT_NE(scratch_.read("r/metrics.csv").find(",diverged\n"), std::string::npos);
}

// Beyond what float32 holds once it meets a loss; static, so that no step is skipped.
constexpr const char* kRuinousScale = ", loss_scale: 3e38";
constexpr const char* kClimb = "on_divergence: climb\n";
constexpr const char* kLevelsHeader = "epoch,step,from,to,back_to_step,reason\n";

struct Climb {
  std::string from, to;
};

class ProgramThatClimbs : public ProgramThatDiverges, public testing::WithParamInterface<Climb> {};

TEST_P(ProgramThatClimbs, TrainsAsIfStartedAtTheLevelAbove) {
  const auto& [from, to] = GetParam();
  scratch_.write("c.yaml", config(from + kRuinousScale) + kClimb);
  scratch_.write("above.yaml", config(to));
  const auto climbed = run("c.yaml --run-dir climbed --epochs 2");
  ASSERT_EQ(climbed.code, 0) << climbed.error;
  ASSERT_EQ(run("above.yaml --run-dir plain --epochs 2").code, 0);
  for (const std::string file : {"steps.csv", "checkpoint.safetensors"})
    EXPECT_TRUE(scratch_.read("climbed/" + file) == scratch_.read("plain/" + file)) << file;
  EXPECT_EQ(accuracy("climbed"), accuracy("plain"));
  EXPECT_EQ(scratch_.read("climbed/levels.csv"),
            kLevelsHeader + ("1,2," + from + "," + to + ",0,the loss became nan at step 2\n"));
  EXPECT_NE(climbed.out.find("training at " + from + " diverged: the loss became nan at step 2. Training continues at " + to),
            std::string::npos)
      << climbed.out;
  EXPECT_NE(climbed.out.find("going back to step 0 and continuing at " + to), std::string::npos) << climbed.out;
}

// Pairs whose weights begin with the same bits: O2's are rounded, O1's are not.
INSTANTIATE_TEST_SUITE_P(From, ProgramThatClimbs, testing::Values(Climb{"O1", "O0"}, Climb{"O3", "O2"}),
                         [](const auto& test) { return test.param.from; });

// The weights, the order of the images, dropout's random numbers and the loss scale are those of a run that was never
// elsewhere.
TEST_F(ProgramThatDiverges, ReturnsToItsLastCheckpointBitForBit) {
  scratch_.write("above.yaml", config("O1"));
  ASSERT_EQ(run("above.yaml --run-dir whole").code, 0);
  ASSERT_EQ(run("above.yaml --run-dir run --stop-after 2").code, 0);
  scratch_.write("run/config.yaml", config(std::string("O2") + kRuinousScale) + kClimb);
  const auto rest = run("--resume run");
  ASSERT_EQ(rest.code, 0) << rest.error;
  for (const std::string file : {"steps.csv", "loss_scale.csv", "checkpoint.safetensors"})
    EXPECT_TRUE(scratch_.read("run/" + file) == scratch_.read("whole/" + file)) << file;
  EXPECT_EQ(scratch_.read("run/levels.csv"), kLevelsHeader + std::string("3,26,O2,O1,24,the loss became nan at step 26\n"));
  EXPECT_NE(scratch_.read("run/config.yaml").find("opt_level: O1"), std::string::npos) << "what a run that goes on trains at";
}

TEST_F(ProgramThatDiverges, ClimbsToTheLevelOfAFile) {
  scratch_.write("kept.yaml", "{opt_level: O2, loss_scale: 64}");
  scratch_.write("c.yaml", config(std::string("O3") + kRuinousScale) + kClimb + "climb_to: kept.yaml\n");
  const auto ended = run("c.yaml --run-dir r --epochs 1");
  ASSERT_EQ(ended.code, 0) << ended.error;
  EXPECT_NE(scratch_.read("r/levels.csv").find(",O3,O2,0,"), std::string::npos);
  EXPECT_NE(scratch_.read("r/steps.csv").find(",64,0,"), std::string::npos) << "steps at the file's loss scale";
  scratch_.write("c.yaml", config("O3") + kClimb + "climb_to: nowhere.yaml\n");
  EXPECT_EQ(refusal("c.yaml").rfind("key 'climb_to': ", 0), 0u);
}

TEST_F(ProgramThatDiverges, FindsTheFileToClimbToFromAnywhere) {
  scratch_.write("kept.yaml", "{opt_level: O2, loss_scale: 64}");
  auto text = config("O3") + kClimb + "climb_to: kept.yaml\n";
  const std::string dir = "dir: data";
  scratch_.write("c.yaml", text.replace(text.find(dir), dir.size(), "dir: '" + (scratch_ / "data") + "'"));
  ASSERT_EQ(run("c.yaml --run-dir r --epochs 2 --stop-after 1").code, 0);
  scratch_.write("elsewhere/kept.yaml", "no level");
  const auto rest = run("--resume ../r", "elsewhere");
  ASSERT_EQ(rest.code, 0) << rest.error;
  EXPECT_NE(rest.out.find("after 2 epochs"), std::string::npos) << rest.out;
}

// Twelve steps, each skipped: fewer than count as divergence, and more than a run can end with.
TEST_F(ProgramThatDiverges, ClimbsIfItsLastEpochCannotBeSaved) {
  const std::string skipping = ", skip_nonfinite: true";
  scratch_.write("c.yaml", config("O1" + skipping + kRuinousScale) + kClimb);
  scratch_.write("above.yaml", config("O0" + skipping));
  const auto climbed = run("c.yaml --run-dir climbed --epochs 1");
  ASSERT_EQ(climbed.code, 0) << climbed.error;
  ASSERT_EQ(run("above.yaml --run-dir plain --epochs 1").code, 0);
  EXPECT_EQ(scratch_.read("climbed/steps.csv"), scratch_.read("plain/steps.csv"));
  EXPECT_EQ(scratch_.read("climbed/levels.csv"),
            kLevelsHeader + std::string("1,12,O1,O0,0,too many steps in a row were skipped at the end of the last epoch\n"));
}

// A learning rate and a weight decay that multiply every weight by -9999.
TEST_F(ProgramThatDiverges, EndsIfEveryLevelDiverges) {
  scratch_.write("c.yaml", config("O2", "{type: SGD, lr: 1000, weight_decay: 10}") + kClimb);
  const auto ended = run("c.yaml --run-dir r");
  EXPECT_EQ(ended.code, 3) << ended.out;
  EXPECT_NE(ended.error.find("training diverged: "), std::string::npos) << ended.error;
  const auto levels = scratch_.read("r/levels.csv");
  EXPECT_NE(levels.find(",O2,O1,"), std::string::npos) << levels;
  EXPECT_NE(levels.find(",O1,O0,"), std::string::npos) << levels;
}

}  // namespace
