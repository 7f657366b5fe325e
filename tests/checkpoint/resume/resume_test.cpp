// BUG-10, SD-*: a resumed run continues as if it had not been interrupted, for every optimizer and level.
#include "tests/amp/support.h"
#include "tests/checkpoint/resume/training.h"

namespace apex::test {
namespace {

constexpr int kSaved = 3, kEnd = 6;
const char* const kLevels[] = {"plain", "O0", "O1", "O2", "O3", "O4", "O5", "O6"};

class Resume : public AmpTest, public ::testing::WithParamInterface<std::string> {
 protected:
  Folder folder_;
};

TEST_P(Resume, Bug10ResumingChangesNoBitAtAnyLevel) {
  for (const char* level : kLevels) {
    if (!trains(GetParam(), level)) continue;
    SCOPED_TRACE(level);
    const auto file = folder_ / "run.ckpt";
    Training run(GetParam(), level);
    run.run(0, kSaved);
    const auto at_save = run.bytes();
    run.save(file);
    EXPECT_EQ(run.bytes(), at_save) << "saving changed something";
    const std::vector<double> before = run.losses;
    run.run(kSaved, kEnd);
    const auto expected = run.bytes();

    for (int trained_before : {0, 2}) {
      Training resumed(GetParam(), level, /*seed=*/17);
      resumed.run(0, trained_before);
      resumed.losses = before;
      EXPECT_EQ(resumed.load(file).notes, std::vector<std::string>());
      EXPECT_EQ(resumed.bytes(), at_save) << trained_before;
      resumed.save(folder_ / "again.ckpt");
      EXPECT_EQ(read_bytes(folder_ / "again.ckpt"), read_bytes(file)) << "the same state gives another file";
      resumed.run(kSaved, kEnd);
      EXPECT_EQ(resumed.losses, run.losses) << trained_before;
      EXPECT_EQ(resumed.bytes(), expected) << trained_before;
    }
  }
}

TEST_P(Resume, ACheckpointFromBeforeTheFirstStepRestartsTheRun) {
  for (const char* level : kLevels) {
    if (!trains(GetParam(), level)) continue;
    SCOPED_TRACE(level);
    Training run(GetParam(), level);
    run.save(folder_ / "start.ckpt");
    run.run(0, kSaved);
    const auto expected = run.bytes();
    run.load(folder_ / "start.ckpt");
    run.run(0, kSaved);
    EXPECT_EQ(run.bytes(), expected);
  }
}
INSTANTIATE_TEST_SUITE_P(Optimizers, Resume, ::testing::ValuesIn(optimizer_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace apex::test
