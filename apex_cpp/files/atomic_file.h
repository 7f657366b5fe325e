#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <cstddef>
#include <cstdint>
#include <string>

namespace apex::amp::detail {

/// The system calls for writing a file. Virtual, so that a test can make any of them fail.
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

/// The current calls: the system's, unless a `FileCallsGuard` exists.
FileCalls& file_calls();

/// Replaces the system's calls by `calls` during its lifetime, for all threads. For tests.
class FileCallsGuard {
 public:
  explicit FileCallsGuard(FileCalls& calls);
  ~FileCallsGuard();
  FileCallsGuard(const FileCallsGuard&) = delete;
  FileCallsGuard& operator=(const FileCallsGuard&) = delete;

 private:
  FileCalls* outer_;
};

/// Writes a file that appears as a whole or not at all: data goes to a temporary file in the same folder, and `commit` renames
/// it to `path`. Without `commit`, or after an error, the old file is unchanged and the temporary file is deleted. Only a
/// killed process leaves a temporary file (its name starts with a dot and ends with .tmp).
///
/// A new file has the permissions of the file that it replaces, or those of the process's umask. If `path` is a symbolic link,
/// its target is replaced. Errors: c10::Error with the path, the system's reason and a remedy.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends.
  void write(const void* data, size_t bytes);
  /// Overwrites bytes that were appended before.
  void overwrite(off_t position, const void* data, size_t bytes);
  /// Replaces the file at `path`, and flushes it to the disk.
  void commit();

 private:
  void open_temporary(bool replaces, mode_t mode);
  void discard();
  /// Deletes the temporary file, then throws an error for the system call that just failed (errno).
  [[noreturn]] void fail(const char* what);

  std::string path_;       // as the caller named it
  std::string target_;     // with links followed
  std::string temporary_;  // empty if there is none
  int file_ = -1;
  int folder_ = -1;
};

/// Reads a file from start to end. Errors: c10::Error with path and reason.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }
  /// Reads exactly `bytes` bytes. Errors: the file ends before.
  void read(void* data, size_t bytes);

 private:
  std::string path_;
  int file_;
  uint64_t size_ = 0;
};

/// CRC-32C (Castagnoli's polynomial) of bytes that are added in pieces. It detects every change within 32 adjacent bits, and
/// misses others with probability 2^-32.
class Crc32c {
 public:
  void add(const void* data, size_t bytes);
  uint32_t value() const { return ~state_; }

 private:
  uint32_t state_ = ~uint32_t{0};
};

}  // namespace apex::amp::detail
