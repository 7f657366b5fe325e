#include <apex_cpp/parallel/processes/file_store.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

namespace apex::parallel::detail {
namespace {

// One process at a time, from lock() on. Where a file system cannot lock folders, all at once.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() {
    if (folder_ >= 0) ::close(folder_);
  }

  void lock(const std::filesystem::path& folder) {
    folder_ = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_ >= 0) ::flock(folder_, LOCK_EX);
  }

 private:
  int folder_ = -1;
};

// c10d's counts that it leaves and then that it holds the file no more. Two ranks that do so at once would each take the other
// for the last, and the file would stay. The lock is let go when c10d's destructor has ended.
class FileStore final : private FolderLock, public c10d::FileStore {
 public:
  using c10d::FileStore::FileStore;
  ~FileStore() override { lock(std::filesystem::path(path_).parent_path()); }

  c10::intrusive_ptr<c10d::Store> clone() override { return make_file_store(path_, numWorkers_); }
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_file_store(const std::string& path, int world_size) {
  return c10::make_intrusive<FileStore>(path, world_size);
}

}  // namespace apex::parallel::detail
