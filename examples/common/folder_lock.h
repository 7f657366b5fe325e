#pragma once

#include <string>

namespace common {

/// A folder that this program alone writes to while the object lives, on this machine and, where the file system knows of
/// locks, on others: the system's lock on the file `lock` in it. Nothing has to be tidied up behind a program that was killed:
/// its lock ends with it, and the file that stays means nothing.
class FolderLock {
 public:
  /// The name of the file.
  static constexpr const char* kName = "lock";

  /// Throws UserError: `held` where another has the folder, or that the folder cannot be written to.
  FolderLock(const std::string& folder, const std::string& held);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_;
};

}  // namespace common
