// The output of a run: its tables, its folder, and files that are replaced as a whole.
#include <sys/stat.h>

#include <filesystem>
#include <future>
#include <optional>
#include <set>

#include "common/write_whole.h"
#include "errors.h"
#include "logging/csv_file.h"
#include "logging/metrics.h"
#include "logging/run_folder.h"
#include "scratch.h"
#include "tests/errors.h"
#include "tests/file_size_limit.h"

namespace {

using apex::test::FileSizeLimit;
using apex::test::message_of;
using train::UserError;

TEST(CsvFile, KeepsRowsUpToTheCheckpointAndDropsLaterOnes) {
  const Scratch scratch;
  scratch.write("t.csv", "a,b\n1,2\n3,4\n5,");  // the last row was cut off when the run was killed
  {
    train::CsvFile file(scratch / "t.csv", "a,b", 1);
    file.append(7, "8,9");
  }
  EXPECT_EQ(scratch.read("t.csv"), "a,b\n1,2\n7,\"8,9\"\n");
}

TEST(CsvFile, ReportsWhyItCannotWrite) {
  const Scratch scratch;
  train::CsvFile file(scratch / "t.csv", "a,b", 0);
  const FileSizeLimit limit(8);
  const auto cannot = "cannot write '" + (scratch / "t.csv") + "': ";
  EXPECT_EQ(message_of<UserError>([&] { file.append(1000, 2000), file.flush(); }), cannot + "File too large");
  EXPECT_EQ(message_of<UserError>([&] { train::CsvFile(scratch / "no/t.csv", "a,b", 0); }),
            "cannot write '" + (scratch / "no/t.csv") + "': No such file or directory");
}

// What fails is a row in the middle of an epoch; a reason asked for at its end might be of something else.
TEST(CsvFile, FailsAtTheRowThatDoesNotFitOnTheDisk) {
  const Scratch scratch;
  train::CsvFile file(scratch / "t.csv", "a", 0);
  const FileSizeLimit limit(8);
  EXPECT_NE(message_of<UserError>([&] { file.append(std::string(1 << 20, 'x')); }).find("File too large"), std::string::npos);
}

TEST(CsvFile, RejectsATableThatDoesNotMatchTheCheckpoint) {
  const Scratch scratch;
  scratch.write("t.csv", "a,b\n1,2\n");
  EXPECT_NE(
      message_of<UserError>([&] { train::CsvFile(scratch / "t.csv", "a,b", 2); }).find("holds 1 row, the checkpoint is at 2"),
      std::string::npos);
  EXPECT_NE(message_of<UserError>([&] { train::CsvFile(scratch / "t.csv", "a,c", 1); }).find("header"), std::string::npos);
  EXPECT_EQ(scratch.read("t.csv"), "a,b\n1,2\n");
}

// A step of a run, at the scale 1024.
train::StepLog step_log(int64_t step) {
  train::StepLog log;
  log.step = step;
  log.loss = 0.5;
  log.loss_scale = 1024;
  return log;
}

train::StepLog skipped_step(int64_t step) {
  auto log = step_log(step);
  log.skipped = true;
  log.scale_event = {1, 1024.0, 512.0, apex::amp::ScaleChange::overflow};
  log.result.first_nonfinite = "fc.weight";
  log.result.inf_count = 3;
  log.result.nan_count = 1;
  return log;
}

TEST(Metrics, LossScaleTableHasScaleChangesAndContinuesAtTheCheckpoint) {
  const Scratch scratch;
  const auto folder = train::RunFolder::create(scratch / "r", "");
  const std::string header = "epoch,step,scale_before,scale_after,skipped,reason,parameter,inf,nan,loss\n";
  const std::string overflow = "1,2,1024,512,1,overflow,fc.weight,3,1,0.5\n";
  {
    train::Metrics metrics(folder, 0, 0);
    metrics.add(1, step_log(0));
    metrics.add(1, skipped_step(1));
    auto grown = step_log(2);
    grown.scale_event = {2, 512.0, 1024.0, apex::amp::ScaleChange::growth};
    metrics.add(1, grown);
    metrics.add(train::EpochLog());
  }
  EXPECT_EQ(scratch.read("r/loss_scale.csv"), header + overflow + "1,3,512,1024,0,growth,,0,0,0.5\n");
  // The checkpoint is at step 2; what was killed behind it had begun another row.
  scratch.write("r/loss_scale.csv", scratch.read("r/loss_scale.csv") + "2,1");
  { train::Metrics metrics(folder, 2, 1); }
  EXPECT_EQ(scratch.read("r/loss_scale.csv"), header + overflow);
}

TEST(RunFolder, NeverOverwritesAnotherRun) {
  const Scratch scratch;
  scratch.write("run/config.yaml", "kept");
  const auto refused = [&](const std::string& why) {
    const auto message = message_of<UserError>([&] { train::RunFolder::create(scratch / "run", "c.yaml"); });
    EXPECT_NE(message.find(why), std::string::npos) << message;
    EXPECT_EQ(scratch.read("run/config.yaml"), "kept");
  };
  refused("is not empty, and holds no run to resume");
  scratch.write("run/checkpoint.safetensors", "kept");
  refused("holds a run: ");
  std::filesystem::create_directories(scratch / "empty");
  EXPECT_EQ(train::RunFolder::create(scratch / "empty", "c.yaml").path(), scratch / "empty");
  EXPECT_EQ(train::RunFolder::create(scratch / "new/deep", "c.yaml").path(), scratch / "new/deep");
}

TEST(RunFolder, LocksTheFolderForItsLifetime) {
  const Scratch scratch;
  std::optional<train::RunFolder> first = train::RunFolder::create(scratch / "run", "c.yaml");
  const auto create = [&] { train::RunFolder::create(scratch / "run", "c.yaml"); };
  const auto held =
      "run folder '" + (scratch / "run") + "': another run is writing to it: choose another folder with --run-dir";
  EXPECT_EQ(message_of<UserError>(create), held);
  scratch.write("run/config.yaml", "");
  scratch.write("run/checkpoint.safetensors", "");
  EXPECT_EQ(message_of<UserError>(create), held);
  EXPECT_NE(message_of<UserError>([&] { train::RunFolder::open(scratch / "run"); }).find("another run is writing to "),
            std::string::npos);
  EXPECT_EQ(train::RunFolder::find(scratch / "run").path(), scratch / "run");
  first.reset();
  EXPECT_EQ(train::RunFolder::open(scratch / "run").path(), scratch / "run");
}

// In one second, or in two: no two have one name.
TEST(RunFolder, RunsThatStartTogetherGetSeparateDatedFolders) {
  const Scratch scratch;
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(scratch.path());
  std::vector<std::future<std::string>> begun;
  for (int i = 0; i < 8; ++i)
    begun.push_back(std::async(std::launch::async, [] { return train::RunFolder::create("", "c.yaml").path(); }));
  std::set<std::string> names;
  for (auto& run : begun) names.insert(run.get());
  std::filesystem::current_path(here);
  EXPECT_EQ(names.size(), 8u);
}

TEST(RunFolder, OpensByFolderOrCheckpoint) {
  const Scratch scratch;
  EXPECT_NE(message_of<UserError>([&] { train::RunFolder::open(scratch.path()); }).find("config.yaml"), std::string::npos);
  scratch.write("config.yaml", "");
  EXPECT_NE(message_of<UserError>([&] { train::RunFolder::open(scratch.path()); }).find("checkpoint.safetensors"),
            std::string::npos);
  scratch.write("checkpoint.safetensors", "");
  EXPECT_EQ(train::RunFolder::open(scratch.path()).path(), scratch.path());
  EXPECT_EQ(train::RunFolder::open(scratch / "checkpoint.safetensors").path(), scratch.path());
}

TEST(WriteWhole, ReplacesOnlyThatFile) {
  const Scratch scratch;
  scratch.write("file", "old");
  common::write_whole(scratch / "file", "new");
  EXPECT_EQ(scratch.read("file"), "new");
  ASSERT_EQ(mkfifo((scratch / "pipe").c_str(), 0600), 0);
  const auto message = message_of<UserError>([&] { common::write_whole(scratch / "pipe", "new"); });
  EXPECT_EQ(message, "cannot write '" + (scratch / "pipe") + "': it is not a regular file; name another");
  EXPECT_TRUE(std::filesystem::is_fifo(scratch / "pipe"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "pipe.part"));
}

TEST(WriteWhole, ReportsWhyItCannot) {
  const Scratch scratch;
  scratch.write("file", "old");
  std::filesystem::create_symlink("/dev/full", scratch / "file.part");
  EXPECT_EQ(message_of<UserError>([&] { common::write_whole(scratch / "file", "new"); }),
            "cannot write '" + (scratch / "file") + "': No space left on device");
  EXPECT_EQ(scratch.read("file"), "old");
}

}  // namespace
