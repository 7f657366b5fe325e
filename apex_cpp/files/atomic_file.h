#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <cstddef>
#include <cstdint>
#include <string>

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

/// A file that is there whole or not at all: what is written goes to a temporary file in the same folder, and `commit` puts
/// that in the place of `path`. Without `commit`, or after any error, the file that was there is as it was and the temporary
/// file is gone; only a process that is killed leaves one behind (its name starts with a dot and ends with .tmp).
///
/// A file that is replaced hands its permissions on; a new one gets those of the process's umask. A symbolic link stays, and
/// what it points to is replaced. Errors: c10::Error naming the path, the system's reason and a remedy.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends.
  void write(const void* data, size_t bytes);
  /// Writes over what was appended before.
  void overwrite(off_t position, const void* data, size_t bytes);
  /// Makes the file what `path` holds, safe against a loss of power.
  void commit();

 private:
  void open_temporary(bool replaces, mode_t mode);
  void discard();
  /// Reports the system call that failed just now (errno), having tidied up.
  [[noreturn]] void fail(const char* what);

  std::string path_;       // as the caller named it
  std::string target_;     // with links followed
  std::string temporary_;  // empty once there is none
  int file_ = -1;
  int folder_ = -1;
};

/// A file that is read from front to back, its size known from the start. Errors: c10::Error naming path and reason.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }
  /// Reads exactly that many bytes; a file that ends before is an error.
  void read(void* data, size_t bytes);

 private:
  std::string path_;
  int file_;
  uint64_t size_ = 0;
};

/// CRC-32C (Castagnoli's polynomial) of bytes that come in pieces: finds every change of up to 32 adjacent bits, and others
/// with a chance of 1 in 2^32 to miss.
class Crc32c {
 public:
  void add(const void* data, size_t bytes);
  uint32_t value() const { return ~state_; }

 private:
  uint32_t state_ = ~uint32_t{0};
};

}  // namespace apex::amp::detail
