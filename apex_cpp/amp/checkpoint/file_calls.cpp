#include <apex_cpp/amp/checkpoint/file_calls.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace apex::amp::detail {
namespace {

FileCalls*& replacement() {
  static FileCalls* calls = nullptr;
  return calls;
}

}  // namespace

int FileCalls::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
int FileCalls::stat(const char* path, struct stat* result) { return ::stat(path, result); }
ssize_t FileCalls::readlink(const char* path, char* target, size_t bytes) { return ::readlink(path, target, bytes); }
int FileCalls::fchmod(int file, mode_t mode) { return ::fchmod(file, mode); }
ssize_t FileCalls::write(int file, const void* data, size_t bytes) { return ::write(file, data, bytes); }
ssize_t FileCalls::pwrite(int file, const void* data, size_t bytes, off_t position) {
  return ::pwrite(file, data, bytes, position);
}
int FileCalls::fsync(int file) { return ::fsync(file); }
int FileCalls::close(int file) { return ::close(file); }
int FileCalls::rename(const char* from, const char* to) { return ::rename(from, to); }
int FileCalls::unlink(const char* path) { return ::unlink(path); }

FileCalls& file_calls() {
  static FileCalls system;
  return replacement() ? *replacement() : system;
}

FileCallsGuard::FileCallsGuard(FileCalls& calls) : outer_(std::exchange(replacement(), &calls)) {}
FileCallsGuard::~FileCallsGuard() { replacement() = outer_; }

}  // namespace apex::amp::detail
