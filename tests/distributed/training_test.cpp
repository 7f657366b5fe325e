// The distributed example as users start it, on generated images.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "tests/distributed/launcher.h"
#include "tests/examples/easy_digits.h"
#include "tests/examples/scratch.h"

namespace apex::testing {
namespace {

constexpr int kGraceSeconds = 20;

// Without batch norm and dropout, several processes compute the same as one process on the whole batch.
std::string training_config(const std::string& level, const std::string& optimizer = "FusedAdam",
                            const std::string& model = "{type: mlp, widths: [32]}") {
  return "model: " + model + "\ndata: {set: digits, dir: data}\noptimizer: {type: " + optimizer +
         ", lr: 0.01}\n"
         "epochs: 4\nbatch_size: 24\ndevice: cpu\nthreads: 1\namp: {opt_level: " +
         level + "}\n";
}

class Training : public ::testing::Test {
 protected:
  void SetUp() override {
    scratch_.write("data/digits.csv", easy_digits());
    scratch_.write("c.yaml", training_config("O2"));
  }

  std::vector<std::string> command(const std::string& arguments, const std::string& program = DISTRIBUTED_PROGRAM) const {
    return {"sh", "-c", "cd '" + scratch_.path() + "' && exec '" + program + "' " + arguments};
  }

  /// The output of the ranks. Fails the test and returns an empty string unless all succeed.
  std::string trained(int count, const std::string& arguments) const {
    Ranks ranks(count, command(arguments));
    ranks.wait(kGraceSeconds);
    EXPECT_TRUE(ranks.all_succeeded()) << ranks.outputs();
    return ranks.all_succeeded() ? ranks.outputs() : "";
  }

  void trained_alone(const std::string& arguments) const {
    EXPECT_EQ(std::system(("cd '" + scratch_.path() + "' && '" TRAIN_PROGRAM "' " + arguments + " >/dev/null").c_str()), 0);
  }

  /// A column of a table in a run folder.
  std::vector<double> column(const std::string& table, int index) const {
    std::istringstream lines(scratch_.read(table));
    std::vector<double> values;
    std::string line, cell;
    for (std::getline(lines, line); std::getline(lines, line);) {
      std::istringstream cells(line);
      for (int i = 0; i <= index; ++i) std::getline(cells, cell, ',');
      values.push_back(std::atof(cell.c_str()));
    }
    return values;
  }
  std::vector<double> losses(const std::string& run) const { return column(run + "/steps.csv", 2); }
  double accuracy(const std::string& run) const { return column(run + "/metrics.csv", 2).back(); }

  Scratch scratch_;
};

class TrainingAtLevel : public Training, public ::testing::WithParamInterface<std::string> {};

TEST_P(TrainingAtLevel, HasTheLossesOfOneProcess) {
  scratch_.write("c.yaml", training_config(GetParam()));
  trained_alone("c.yaml --run-dir alone");
  trained(3, "c.yaml --run-dir together");
  const auto alone = losses("alone"), together = losses("together");
  ASSERT_EQ(alone.size(), together.size());
  // The first step's weights are equal. Only the order of the sum over 24 losses, rounded to at least 8 bits (2^-8 each), and
  // the last digit of the table differ.
  EXPECT_NEAR(together.front(), alone.front(), alone.front() * 0x1p-8);
  EXPECT_GT(accuracy("together"), 0.9);
  EXPECT_GT(accuracy("alone"), 0.9);
}

INSTANTIATE_TEST_SUITE_P(Of, TrainingAtLevel, ::testing::Values("O0", "O2", "O5"), [](const auto& test) { return test.param; });

#ifdef JUMPING_CLOCK
/// The time in the name of a run's event file.
double time_of_events(const Scratch& scratch, const std::string& run) {
  for (const auto& entry : std::filesystem::directory_iterator(scratch / run)) {
    const std::string name = entry.path().filename(), start = "events.out.tfevents.";
    if (name.rfind(start, 0) == 0) return std::atof(name.c_str() + start.size());
  }
  return NAN;
}

TEST_F(Training, DoesNotDependOnTheWallClock) {
  scratch_.write("c.yaml", training_config("O2") + "tensorboard: true\n");
  trained(2, "c.yaml --run-dir steady");
  for (const std::string arguments : {"c.yaml --run-dir jumping --stop-after 2", "--resume jumping"}) {
    Ranks ranks(2, command(arguments), {"LD_PRELOAD=" JUMPING_CLOCK});
    ranks.wait(kGraceSeconds);
    ASSERT_TRUE(ranks.all_succeeded()) << ranks.outputs();
  }
  EXPECT_EQ(scratch_.read("jumping/steps.csv"), scratch_.read("steady/steps.csv"));
  EXPECT_EQ(scratch_.read("jumping/loss_scale.csv"), scratch_.read("steady/loss_scale.csv"));
  EXPECT_GT(std::abs(time_of_events(scratch_, "jumping") - time_of_events(scratch_, "steady")), 80000) << "no jump";
}
#endif

TEST_F(Training, SynchronizesBatchNormsOverProcesses) {
  const auto config = training_config("O0", "FusedAdam", "{type: convnet, widths: [4]}");
  scratch_.write("c.yaml", config + "sync_batch_norm: true\n");
  scratch_.write("apart.yaml", config);
  trained_alone("c.yaml --run-dir alone");
  trained(3, "c.yaml --run-dir joined");
  trained(3, "apart.yaml --run-dir apart");
  // The same function of the first batch. The table has a float's digits, whose sums may have another order.
  const double alone = losses("alone").front();
  EXPECT_NEAR(losses("joined").front(), alone, alone * 1e-5);
  EXPECT_GT(std::abs(losses("apart").front() - alone), alone * 1e-4);
}

TEST_F(Training, ShardsTheOptimizersStateOverAnyNumberOfProcesses) {
  scratch_.write("c.yaml", training_config("O2", "DistributedFusedAdam"));
  scratch_.write("whole.yaml", training_config("O2"));
  trained(2, "whole.yaml --run-dir whole");
  trained(2, "c.yaml --run-dir run --stop-after 2");
  trained(3, "--resume run");
  const auto whole = losses("whole"), run = losses("run");
  ASSERT_EQ(run.size(), whole.size());
  EXPECT_EQ(run.front(), whole.front()) << "the first step has the same weights and batches";
  EXPECT_GT(accuracy("run"), 0.9);
  Ranks alone(1, {"sh", "-c", "cd '" + scratch_.path() + "' && exec '" TRAIN_PROGRAM "' c.yaml"});
  alone.wait(kGraceSeconds);
  EXPECT_NE(alone.outputs().find("DistributedFusedAdam is for several processes"), std::string::npos) << alone.outputs();
}

// All of them: each loads the leader's checkpoint, and the steps are those of a run that began at the level above.
TEST_F(Training, ClimbsOnAllRanksWhenItDiverges) {
  for (const std::string optimizer : {"FusedAdam", "DistributedFusedAdam"}) {
    scratch_.write("c.yaml", training_config("O1, loss_scale: 3e38", optimizer) + "on_divergence: climb\n");
    scratch_.write("above.yaml", training_config("O0", optimizer));
    trained(2, "c.yaml --epochs 2 --run-dir climbed" + optimizer);
    trained(2, "above.yaml --epochs 2 --run-dir plain" + optimizer);
    EXPECT_EQ(scratch_.read("climbed" + optimizer + "/steps.csv"), scratch_.read("plain" + optimizer + "/steps.csv"));
    EXPECT_NE(scratch_.read("climbed" + optimizer + "/levels.csv").find(",O1,O0,0,"), std::string::npos);
  }
}

TEST_F(Training, ResumesBitForBit) {
  trained(2, "c.yaml --run-dir whole");
  trained(2, "c.yaml --run-dir parts --stop-after 2");
  trained(2, "--resume parts");
  EXPECT_EQ(scratch_.read("parts/steps.csv"), scratch_.read("whole/steps.csv"));
}

TEST_F(Training, ResumesWithAnotherNumberOfProcesses) {
  trained(2, "c.yaml --run-dir run --stop-after 1");
  trained(3, "--resume run --epochs 2");
  trained_alone("--resume run --epochs 3");
  trained(4, "--resume run --epochs 4");
  EXPECT_EQ(losses("run").size(), 4u * (240 / 24));
  EXPECT_GT(accuracy("run"), 0.9);
}

TEST_F(Training, IsReportedOnlyByRank0) {
  const auto output = trained(2, "c.yaml --run-dir run --epochs 1");
  EXPECT_NE(output.find("[rank 0] run folder run, 240 training and 60 test images, 2 processes with batches of 12 images"),
            std::string::npos)
      << output;
  EXPECT_EQ(output.find("[rank 1]"), std::string::npos) << output;
}

TEST_F(Training, AFolderInUseIsAnErrorOnEveryRank) {
  trained(2, "c.yaml --run-dir run --epochs 1");
  Ranks ranks(2, command("c.yaml --run-dir run"));
  ranks.wait(kGraceSeconds);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(WEXITSTATUS(ranks[rank].status), 2);
    EXPECT_NE(ranks[rank].output().find("run folder 'run' holds a run"), std::string::npos) << ranks[rank].output();
  }
}

TEST_F(Training, RejectsMoreProcessesThanImages) {
  auto config = training_config("O2");
  config.replace(config.find("batch_size: 24"), 14, "batch_size: 2");
  scratch_.write("c.yaml", config);
  Ranks ranks(3, command("c.yaml --run-dir run"));
  ranks.wait(kGraceSeconds);
  for (const int rank : {0, 1, 2})
    EXPECT_NE(ranks[rank].output().find("key 'batch_size': 2 images are too few for 3 processes"), std::string::npos)
        << ranks[rank].output();
}

TEST_F(Training, RunsUnderTorchrun) {
  if (std::string(TORCHRUN).empty()) GTEST_SKIP() << "no torchrun stands beside this LibTorch";
  const std::string start = "cd '" + scratch_.path() +
                            "' && OMP_NUM_THREADS=1 '" TORCHRUN
                            "' --no-python --standalone --nproc_per_node=2 '" DISTRIBUTED_PROGRAM "' c.yaml --run-dir ";
  ASSERT_EQ(std::system((start + "run >out 2>&1").c_str()), 0) << scratch_.read("out");
  trained(2, "c.yaml --run-dir plain");
  EXPECT_EQ(scratch_.read("run/steps.csv"), scratch_.read("plain/steps.csv"));
}

}  // namespace
}  // namespace apex::testing
