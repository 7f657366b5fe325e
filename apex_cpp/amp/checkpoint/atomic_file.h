#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace apex::amp::detail {

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

}  // namespace apex::amp::detail
