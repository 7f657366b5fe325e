#include "tests/checkpoint/failing_calls.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>

namespace apex::test {

using amp::detail::FileCalls;
using amp::detail::FileCallsGuard;

bool FailingCalls::fails(const char* name) {
  if (count_++ != at_) return false;
  if (error_ == kKill) ::raise(SIGKILL);
  failed_ = name;
  errno = error_;
  return true;
}

int FailingCalls::open(const char* path, int flags, mode_t mode) {
  return fails("open") ? -1 : FileCalls::open(path, flags, mode);
}
int FailingCalls::stat(const char* path, struct stat* result) { return fails("stat") ? -1 : FileCalls::stat(path, result); }
ssize_t FailingCalls::readlink(const char* path, char* target, size_t bytes) {
  return fails("readlink") ? -1 : FileCalls::readlink(path, target, bytes);
}
int FailingCalls::fchmod(int file, mode_t mode) { return fails("fchmod") ? -1 : FileCalls::fchmod(file, mode); }
ssize_t FailingCalls::write(int file, const void* data, size_t bytes) {
  return fails("write") ? -1 : FileCalls::write(file, data, bytes);
}
ssize_t FailingCalls::pwrite(int file, const void* data, size_t bytes, off_t position) {
  return fails("pwrite") ? -1 : FileCalls::pwrite(file, data, bytes, position);
}
int FailingCalls::fsync(int file) { return fails("fsync") ? -1 : FileCalls::fsync(file); }
int FailingCalls::close(int file) {
  // As in the kernel: the descriptor is closed even if close reports an error.
  const bool failed = fails("close");
  const int result = FileCalls::close(file);
  if (failed) errno = error_;
  return failed ? -1 : result;
}
int FailingCalls::rename(const char* from, const char* to) { return fails("rename") ? -1 : FileCalls::rename(from, to); }
int FailingCalls::unlink(const char* path) { return fails("unlink") ? -1 : FileCalls::unlink(path); }

std::vector<std::string> entries_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

int fail_at_every_call(const std::string& folder, int error, const std::function<void()>& write,
                       const std::function<void()>& is_whole) {
  const auto before = entries_of(folder);
  for (int at = 0;; ++at) {
    FailingCalls calls(at, error);
    std::string message;
    {
      FileCallsGuard guard(calls);
      try {
        write();
      } catch (const std::exception& thrown) {
        message = thrown.what();
      }
    }
    if (!calls.reached()) return at;
    SCOPED_TRACE("call " + std::to_string(at) + ", " + calls.failed() + " failed; message: " + message);
    is_whole();
    EXPECT_EQ(entries_of(folder), before);
    // Either the file was written or an error was raised.
    const bool harmless = calls.failed() == "readlink" || (calls.failed() == "close" && message.empty());
    EXPECT_EQ(message.empty(), harmless);
    if (::testing::Test::HasFailure()) return at;
  }
}

int kill_at_every_call(const std::function<void()>& write, const std::function<void()>& is_whole) {
  for (int at = 0;; ++at) {
    const pid_t child = ::fork();
    if (child == 0) {
      FailingCalls calls(at, FailingCalls::kKill);
      FileCallsGuard guard(calls);
      write();
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    SCOPED_TRACE("killed at call " + std::to_string(at));
    is_whole();
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return at;
    }
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    if (::testing::Test::HasFailure()) return at;
  }
}

}  // namespace apex::test
