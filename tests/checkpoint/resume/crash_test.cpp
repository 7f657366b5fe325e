// Saving a checkpoint is interrupted: the file holds the old state or the new one.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/amp/support.h"
#include "tests/checkpoint/failing_calls.h"
#include "tests/checkpoint/resume/training.h"
#include "tests/file_size_limit.h"

namespace apex::test {
namespace {

class Crash : public AmpTest {
 protected:
  Crash() : run_("FusedAdam", "O2") {
    run_.run(0, 2);
    run_.save(file_, {{"step", 2}});
    old_bytes_ = run_.bytes();
    run_.run(2, 4);
    new_bytes_ = run_.bytes();
    new_random_ = at::detail::getDefaultCPUGenerator().get_state();
    run_.save(folder_ / "reference", {{"step", 4}});
    new_size_ = std::filesystem::file_size(folder_ / "reference");
  }
  void save() const {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(new_random_);  // loading advances it
    run_.save(file_, {{"step", 4}});
  }
  /// The step at which the file was saved; the file must load.
  int64_t step_in_file() {
    Training reader("FusedAdam", "O2", 9);
    const auto loaded = reader.load(file_);
    const auto step = loaded.metadata.at("step").to_int();
    EXPECT_EQ(reader.bytes(), step == 2 ? old_bytes_ : new_bytes_);
    return step;
  }

  Folder folder_;
  const std::string file_ = folder_ / "run.ckpt";
  Training run_;
  std::string old_bytes_, new_bytes_;
  torch::Tensor new_random_;
  uint64_t new_size_ = 0;
};

TEST_F(Crash, AProcessKilledAtAnySystemCallKeepsACompleteFile) {
  int with_old = 0, with_new = 0;
  const int calls = kill_at_every_call([&] { save(); }, [&] { ++(step_in_file() == 2 ? with_old : with_new); });
  EXPECT_GT(with_old, 5);
  EXPECT_GE(with_new, 2) << "killed after the rename, and not at all";
  EXPECT_EQ(with_old + with_new, calls + 1);
  save();  // files left by killed processes do not get in the way
  EXPECT_EQ(step_in_file(), 4);
  std::cout << "killed at " << calls << " system calls; the old file was there " << with_old << " times, the new one "
            << with_new << " times\n";
}

TEST_F(Crash, AFailureOfAnySystemCallKeepsACompleteFile) {
  for (int error : {ENOSPC, EIO}) {
    const int calls = fail_at_every_call(
        folder_.path(), error, [&] { save(); }, [&] { step_in_file(); });
    EXPECT_GT(calls, 5);
  }
}

/// The exit code of a child that saves under a file size limit: 0 saved, 1 refused.
int save_with_limit(const std::function<void()>& save, uint64_t bytes) {
  const pid_t child = ::fork();
  if (child == 0) {
    const FileSizeLimit limit(bytes);
    ::_exit(message_of(save).empty() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_F(Crash, AFullDiskKeepsOnlyTheOldFile) {
  const auto entries = entries_of(folder_.path());
  for (uint64_t limit = 0; limit < new_size_; limit += new_size_ / 23) {
    EXPECT_EQ(save_with_limit([&] { save(); }, limit), 1) << limit;
    EXPECT_EQ(step_in_file(), 2) << limit;
    EXPECT_EQ(entries_of(folder_.path()), entries);
  }
  EXPECT_EQ(save_with_limit([&] { save(); }, new_size_ * 2), 0);
  EXPECT_EQ(step_in_file(), 4);
}

}  // namespace
}  // namespace apex::test
