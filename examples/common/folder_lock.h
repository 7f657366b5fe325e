#pragma once

#include <string>

namespace common {

/// Locks a folder while the object lives, so that only this program writes to it. Other machines respect the lock if the file
/// system supports locks. It is a system lock on the file `lock` in the folder: it ends with the process, even if that is
/// killed, and a leftover file has no effect.
class FolderLock {
 public:
  /// The name of the lock file.
  static constexpr const char* kName = "lock";

  /// Throws UserError with the text `held` if another process holds the lock, or if the folder is not writable.
  FolderLock(const std::string& folder, const std::string& held);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_;
};

}  // namespace common
