// Files that are written completely or not at all, whichever call fails, and the errors of reading one.
#include <apex_cpp/files/atomic_file.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>

#include "tests/checkpoint/failing_calls.h"
#include "tests/errors.h"
#include "tests/examples/scratch.h"
#include "tests/file_size_limit.h"

namespace apex::test {
namespace {

using amp::detail::AtomicFile;
using amp::detail::FileCallsGuard;

void write_file(const std::string& path, const std::string& content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

/// Sets the umask for as long as it lives.
class Umask {
 public:
  explicit Umask(mode_t mask) : outer_(::umask(mask)) {}
  ~Umask() { ::umask(outer_); }

 private:
  mode_t outer_;
};

TEST(AtomicFile, HoldsWrittenAndOverwrittenBytes) {
  Scratch scratch;
  {
    AtomicFile file(scratch / "a");
    file.write("one", 3);
    file.write("", 0);
    file.write("two", 3);
    file.overwrite(2, "XY", 2);
    EXPECT_FALSE(std::filesystem::exists(scratch / "a"));
    file.commit();
  }
  EXPECT_EQ(scratch.read("a"), "onXYwo");
  EXPECT_EQ(entries_of(scratch.path()), std::vector<std::string>{"a"});
}

TEST(AtomicFile, WithoutCommitNothingChanges) {
  Scratch scratch;
  scratch.write("a", "old");
  { AtomicFile(scratch / "a").write("new", 3); }
  EXPECT_EQ(scratch.read("a"), "old");
  EXPECT_EQ(entries_of(scratch.path()), std::vector<std::string>{"a"});
}

TEST(AtomicFile, ANewFileHasTheUmasksPermissions) {
  Scratch scratch;
  for (const mode_t mask : {022, 027, 077, 0}) {
    const Umask umask(mask);
    const std::string name = "a" + std::to_string(mask);
    write_file(scratch / name, "x");
    EXPECT_EQ(mode_of(scratch / name), 0666 & ~mask) << "umask " << mask;
  }
}

TEST(AtomicFile, AReplacedFilesPermissionsAreKept) {
  Scratch scratch;
  const Umask umask(022);
  for (const mode_t mode : {0600, 0644, 0664, 0666, 0755, 0440}) {
    scratch.write("a", "old");
    ASSERT_EQ(::chmod((scratch / "a").c_str(), mode), 0);
    write_file(scratch / "a", "new");
    EXPECT_EQ(mode_of(scratch / "a"), mode);
    EXPECT_EQ(scratch.read("a"), "new");
    ::unlink((scratch / "a").c_str());
  }
}

TEST(AtomicFile, WritingThroughASymlinkReplacesItsTarget) {
  Scratch scratch;
  scratch.write("folder/target", "old");
  ASSERT_EQ(::symlink("folder/target", (scratch / "relative").c_str()), 0);
  ASSERT_EQ(::symlink((scratch / "relative").c_str(), (scratch / "absolute").c_str()), 0);
  write_file(scratch / "absolute", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(scratch / "absolute"));
  EXPECT_TRUE(std::filesystem::is_symlink(scratch / "relative"));
  EXPECT_EQ(scratch.read("folder/target"), "new");
  // A dangling symlink's target is created.
  ASSERT_EQ(::symlink("folder/later", (scratch / "dangling").c_str()), 0);
  write_file(scratch / "dangling", "made");
  EXPECT_EQ(scratch.read("folder/later"), "made");
}

TEST(AtomicFile, ARelativePathIsInTheWorkingFolder) {
  Scratch scratch;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(scratch.path());
  write_file("a", "here");
  std::filesystem::current_path(before);
  EXPECT_EQ(scratch.read("a"), "here");
}

TEST(AtomicFile, TheLongestNameWorks) {
  Scratch scratch;
  const std::string name(255, 'n');
  write_file(scratch / name, "x");
  EXPECT_EQ(entries_of(scratch.path()), std::vector<std::string>{name});
}

TEST(AtomicFile, ErrorsNameThePathTheReasonAndTheRemedy) {
  Scratch scratch;
  const auto error_of = [](const std::string& path) { return message_of<c10::Error>([&] { AtomicFile file(path); }); };
  EXPECT_NE(error_of(scratch / "none/a").find("none/a': "), std::string::npos);
  EXPECT_NE(error_of(scratch / "none/a").find("No such file or directory. Make its folder first"), std::string::npos);
  EXPECT_NE(error_of(scratch.path()).find("is not a regular file. Choose another name"), std::string::npos);
  EXPECT_NE(error_of("/dev/full").find("is not a regular file"), std::string::npos);
  EXPECT_NE(error_of(scratch / std::string(300, 'n')).find("Choose another name"), std::string::npos);
  ASSERT_EQ(::symlink("circle", (scratch / "circle").c_str()), 0);
  EXPECT_NE(error_of(scratch / "circle").find("Choose another name"), std::string::npos);
}

/// Writes at most three bytes a call, and is interrupted before each.
class SlowCalls : public amp::detail::FileCalls {
 public:
  ssize_t write(int file, const void* data, size_t bytes) override {
    return interrupted() ? -1 : FileCalls::write(file, data, std::min<size_t>(bytes, 3));
  }
  ssize_t pwrite(int file, const void* data, size_t bytes, off_t position) override {
    return interrupted() ? -1 : FileCalls::pwrite(file, data, std::min<size_t>(bytes, 3), position);
  }
  int open(const char* path, int flags, mode_t mode) override {
    return interrupted() ? -1 : FileCalls::open(path, flags, mode);
  }
  int fsync(int file) override { return interrupted() ? -1 : FileCalls::fsync(file); }
  int interruptions() const { return interruptions_; }

 private:
  bool interrupted() {
    last_ = !last_;
    if (last_) ++interruptions_;
    errno = EINTR;
    return last_;
  }
  bool last_ = false;
  int interruptions_ = 0;
};

TEST(AtomicFile, ShortAndInterruptedCallsAreRepeated) {
  Scratch scratch;
  SlowCalls calls;
  {
    FileCallsGuard guard(calls);
    AtomicFile file(scratch / "a");
    file.write("0123456789", 10);
    file.overwrite(1, "abcdefg", 7);
    file.commit();
  }
  EXPECT_EQ(scratch.read("a"), "0abcdefg89");
  EXPECT_GE(calls.interruptions(), 8);
}

/// One call fails: the one at position `at` among those of a name. A close takes place all the same, as in the kernel.
class OneFailingCall : public amp::detail::FileCalls {
 public:
  OneFailingCall(const char* name, int at, int error) : name_(name), at_(at), error_(error) {}
  int open(const char* path, int flags, mode_t mode) override {
    opened_.emplace_back(path);
    return fails("open") ? -1 : FileCalls::open(path, flags, mode);
  }
  int fsync(int file) override { return fails("fsync") ? -1 : FileCalls::fsync(file); }
  int close(int file) override {
    const int result = FileCalls::close(file);
    return fails("close") ? -1 : result;
  }
  const std::vector<std::string>& opened() const { return opened_; }

 private:
  bool fails(const std::string& name) {
    if (name != name_ || at_-- != 0) return false;
    errno = error_;
    return true;
  }
  std::string name_;
  int at_, error_;
  std::vector<std::string> opened_;
};

// File systems without fsync for folders, a close that a signal interrupts, and a temporary file of another process.
TEST(AtomicFile, SomeFailuresAreNone) {
  struct Failure {
    const char* name;
    int at, error;
  };
  for (const Failure& each : {Failure{"fsync", 1, EINVAL}, Failure{"close", 0, EINTR}, Failure{"open", 1, EEXIST}}) {
    Scratch scratch;
    scratch.write("a", "old");
    OneFailingCall calls(each.name, each.at, each.error);
    const FileCallsGuard guard(calls);
    write_file(scratch / "a", "new");
    EXPECT_EQ(scratch.read("a"), "new") << each.name;
    EXPECT_EQ(entries_of(scratch.path()), std::vector<std::string>{"a"}) << each.name;
  }
}

TEST(AtomicFile, EveryErrorHasItsRemedy) {
  const std::vector<std::pair<const char*, std::vector<int>>> remedies{
      {"Free some space", {ENOSPC, EDQUOT, EFBIG}},
      {"Choose a folder that this process may write to", {EACCES, EPERM, EROFS}},
      {"Make its folder first", {ENOENT, ENOTDIR}},
      {"Choose another name", {ENAMETOOLONG, ELOOP}},
      {"Close files that are no longer needed", {EMFILE, ENFILE}},
      {"Check the disk, or choose another folder", {EIO, ENXIO}}};
  Scratch scratch;
  for (const auto& [remedy, errors] : remedies) {
    for (const int error : errors) {
      OneFailingCall calls("open", 1, error);
      const FileCallsGuard guard(calls);
      const auto message = message_of<c10::Error>([&] { AtomicFile file(scratch / "a"); });
      EXPECT_NE(message.find(std::string(std::strerror(error)) + ". " + remedy), std::string::npos) << message;
    }
  }
}

// The folder's descriptor is opened first, and here no more than that.
TEST(AtomicFile, AFileInTheRootIsInTheFolderOfThatName) {
  OneFailingCall calls("open", 0, EACCES);
  const FileCallsGuard guard(calls);
  EXPECT_THROW(AtomicFile("/a_file_that_no_test_writes"), c10::Error);
  EXPECT_EQ(calls.opened(), std::vector<std::string>{"/"});
}

// The old file or the new one: the folder is synced after the rename.
void expect_whole(const Scratch& scratch) {
  const std::string content = scratch.read("a");
  EXPECT_TRUE(content == "old" || content == "nXw") << content;
}

void write_in_steps(const std::string& path) {
  AtomicFile file(path);
  file.write("n", 1);
  file.write("ew", 2);
  file.overwrite(1, "X", 1);
  file.commit();
}

/// The calls that decide what a loss of power leaves, with the kind of what they are for: the file or its folder.
class RecordedCalls : public amp::detail::FileCalls {
 public:
  int open(const char* path, int flags, mode_t mode) override {
    const int file = FileCalls::open(path, flags, mode);
    kinds_[file] = (flags & O_CREAT) != 0 ? "file" : "folder";
    return file;
  }
  ssize_t pwrite(int file, const void* data, size_t bytes, off_t position) override {
    names.push_back("overwrite");
    return FileCalls::pwrite(file, data, bytes, position);
  }
  int fsync(int file) override {
    names.push_back("flush " + kinds_[file]);
    return FileCalls::fsync(file);
  }
  int close(int file) override {
    names.push_back("close " + kinds_[file]);
    return FileCalls::close(file);
  }
  int rename(const char* from, const char* to) override {
    names.push_back("rename");
    return FileCalls::rename(from, to);
  }
  std::vector<std::string> names;

 private:
  std::map<int, std::string> kinds_;
};

TEST(AtomicFile, IsFlushedBeforeItIsRenamedAndItsFolderAfterwards) {
  Scratch scratch;
  RecordedCalls calls;
  {
    const FileCallsGuard guard(calls);
    write_in_steps(scratch / "a");
  }
  EXPECT_EQ(calls.names,
            (std::vector<std::string>{"overwrite", "flush file", "close file", "rename", "flush folder", "close folder"}));
}

std::ptrdiff_t open_descriptors() { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); }

TEST(AtomicFile, LeavesNoDescriptorOpenWhateverFails) {
  Scratch scratch;
  scratch.write("a", "old");
  const auto before = open_descriptors();
  fail_at_every_call(
      scratch.path(), EIO, [&] { write_in_steps(scratch / "a"); }, [&] { EXPECT_EQ(open_descriptors(), before); });
  { amp::detail::InputFile file(scratch / "a"); }
  EXPECT_THROW(amp::detail::InputFile file(scratch.path()), c10::Error);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(AtomicFile, AFailureOfAnyCallKeepsACompleteFileAndLeavesNoOther) {
  Scratch scratch;
  const Umask umask(022);
  for (const int error : {ENOSPC, EIO, EDQUOT}) {
    scratch.write("a", "old");
    ASSERT_EQ(::chmod((scratch / "a").c_str(), 0666), 0);  // wider than the umask: fchmod is called, too
    const int runs = fail_at_every_call(
        scratch.path(), error, [&] { write_in_steps(scratch / "a"); }, [&] { expect_whole(scratch); });
    EXPECT_GE(runs, 13);
    EXPECT_EQ(scratch.read("a"), "nXw");  // no call failed in the last run
  }
}

TEST(AtomicFile, AProcessKilledAtAnyCallKeepsACompleteFile) {
  Scratch scratch;
  scratch.write("a", "old");
  const int runs = kill_at_every_call([&] { write_in_steps(scratch / "a"); }, [&] { expect_whole(scratch); });
  EXPECT_GE(runs, 11);
  EXPECT_EQ(scratch.read("a"), "nXw");
}

TEST(AtomicFile, AFullDiskKeepsTheOldFile) {
  Scratch scratch;
  scratch.write("a", "old");
  const std::string content(100'000, 'x');
  for (const rlim_t limit : {0, 1, 4096, 99'999}) {
    const FileSizeLimit guard(limit);
    const std::string message = message_of<c10::Error>([&] { write_file(scratch / "a", content); });
    EXPECT_NE(message.find("File too large. Free some space"), std::string::npos) << message;
    EXPECT_EQ(scratch.read("a"), "old");
    EXPECT_EQ(entries_of(scratch.path()), std::vector<std::string>{"a"});
  }
  const FileSizeLimit guard(100'000);
  write_file(scratch / "a", content);
  EXPECT_EQ(scratch.read("a"), content);
}

// As of a disk that fails: here nothing can be read to the address.
TEST(InputFile, ErrorsOfReadingNameThePathTheReasonAndTheRemedy) {
  Scratch scratch;
  scratch.write("a", "abc");
  amp::detail::InputFile file(scratch / "a");
  const std::string path = "cannot read '" + (scratch / "a") + "': ";
  expect_error([&] { file.read(nullptr, 1); }, {path, std::string(std::strerror(EFAULT)) + ". Check the disk"});
  std::string content(4, '-');
  expect_error([&] { file.read(content.data(), 4); }, {path, "ended while it was read, 1 bytes early", "another program"});
  EXPECT_EQ(content, "abc-");
}

}  // namespace
}  // namespace apex::test
