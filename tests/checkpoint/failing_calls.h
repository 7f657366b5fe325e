#pragma once

#include <apex_cpp/files/atomic_file.h>

#include <functional>
#include <string>
#include <vector>

namespace apex::test {

/// System calls of which the one at position `at` fails with `error` or kills the process instead.
class FailingCalls : public amp::detail::FileCalls {
 public:
  static constexpr int kKill = -1;
  FailingCalls(int at, int error) : at_(at), error_(error) {}

  /// Whether the call at the position was reached, and its name.
  bool reached() const { return count_ > at_; }
  const std::string& failed() const { return failed_; }

  int open(const char* path, int flags, mode_t mode) override;
  int stat(const char* path, struct stat* result) override;
  ssize_t readlink(const char* path, char* target, size_t bytes) override;
  int fchmod(int file, mode_t mode) override;
  ssize_t write(int file, const void* data, size_t bytes) override;
  ssize_t pwrite(int file, const void* data, size_t bytes, off_t position) override;
  int fsync(int file) override;
  int close(int file) override;
  int rename(const char* from, const char* to) override;
  int unlink(const char* path) override;

 private:
  bool fails(const char* name);

  int at_;
  int error_;
  int count_ = 0;
  std::string failed_;
};

/// Names of the entries of a folder, sorted.
std::vector<std::string> entries_of(const std::string& folder);

/// Runs `write` with its n-th system call failing with `error`, for every n that it reaches. Before each run and after it
/// `path` must hold what `is_whole` accepts, and the folder nothing beside it. Answers the number of runs.
int fail_at_every_call(const std::string& folder, int error, const std::function<void()>& write,
                       const std::function<void()>& is_whole);

/// The same with a child process that is killed at its n-th call. Its temporary file may remain.
int kill_at_every_call(const std::function<void()>& write, const std::function<void()>& is_whole);

}  // namespace apex::test
