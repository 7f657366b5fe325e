#include "common/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/user_error.h"

namespace common {

FolderLock::FolderLock(const std::string& folder, const std::string& held)
    : file_(open((folder + "/" + kName).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644)) {
  if (file_ < 0) throw UserError("cannot write to folder '" + folder + "': " + std::strerror(errno));
  // Any other error means a file system without locks; programs must run there too.
  if (flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(file_);
  throw UserError(held);
}

FolderLock::~FolderLock() { close(file_); }

}  // namespace common
