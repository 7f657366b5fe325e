#pragma once

#include <sys/stat.h>
#include <sys/types.h>

namespace apex::amp::detail {

/// The system calls behind a file that is written, in one place so that a test can let any of them fail.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open(const char* path, int flags, mode_t mode);
  virtual int stat(const char* path, struct stat* result);
  virtual ssize_t readlink(const char* path, char* target, size_t bytes);
  virtual int fchmod(int file, mode_t mode);
  virtual ssize_t write(int file, const void* data, size_t bytes);
  virtual ssize_t pwrite(int file, const void* data, size_t bytes, off_t position);
  virtual int fsync(int file);
  virtual int close(int file);
  virtual int rename(const char* from, const char* to);
  virtual int unlink(const char* path);
};

/// The calls in force: the system's own, unless a `FileCallsGuard` lives.
FileCalls& file_calls();

/// Puts `calls` in the place of the system's for as long as the guard lives. For tests: all threads see it.
class FileCallsGuard {
 public:
  explicit FileCallsGuard(FileCalls& calls);
  ~FileCallsGuard();
  FileCallsGuard(const FileCallsGuard&) = delete;
  FileCallsGuard& operator=(const FileCallsGuard&) = delete;

 private:
  FileCalls* outer_;
};

}  // namespace apex::amp::detail
