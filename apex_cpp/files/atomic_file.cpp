#include <apex_cpp/files/atomic_file.h>

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
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

namespace {

constexpr mode_t kPermissionBits = 07777;

/// Repeats a system call while a signal interrupts it.
template <class Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Uses at most kLongest characters of the name: a file name may have 255.
std::string temporary_beside(const std::string& target) {
  static std::atomic<int> count{0};
  constexpr size_t kLongest = 200;
  const auto name = target.substr(target.rfind('/') + 1);
  return folder_of(target) + "/." + name.substr(0, kLongest) + "." + std::to_string(::getpid()) + "-" +
         std::to_string(count++) + ".tmp";
}

/// The target of a path after following all links; it need not exist. For a cycle of links a later system call fails.
std::string follow_links(std::string path) {
  constexpr int kMostLinks = 40;
  char buffer[PATH_MAX];
  for (int links = 0; links < kMostLinks; ++links) {
    const ssize_t bytes = file_calls().readlink(path.c_str(), buffer, sizeof buffer);
    if (bytes < 0) break;
    const std::string target(buffer, static_cast<size_t>(bytes));
    path = target.compare(0, 1, "/") == 0 ? target : folder_of(path) + "/" + target;
  }
  return path;
}

const char* remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "Free some space, raise the limit, or choose another folder";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Choose a folder that this process may write to";
    case ENOENT:
    case ENOTDIR:
      return "Make its folder first";
    case ENAMETOOLONG:
    case ELOOP:
      return "Choose another name";
    case EMFILE:
    case ENFILE:
      return "Close files that are no longer needed";
    default:
      return "Check the disk, or choose another folder";
  }
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path), target_(follow_links(path)) {
  struct stat replaced {};
  const bool replaces = file_calls().stat(target_.c_str(), &replaced) == 0;
  if (!replaces && errno != ENOENT) fail("reading the type of the existing file");
  TORCH_CHECK(!replaces || S_ISREG(replaced.st_mode), "cannot write '", path_,
              "': it exists and is not a regular file. Choose another name.");
  folder_ = uninterrupted([&] { return file_calls().open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (folder_ < 0) fail("opening its folder");
  open_temporary(replaces, replaces ? replaced.st_mode & kPermissionBits : 0666);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::open_temporary(bool replaces, mode_t mode) {
  std::string name;
  do {
    name = temporary_beside(target_);
    // The temporary file never has more permissions than the final one, because the umask only removes bits.
    file_ = uninterrupted([&] { return file_calls().open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode); });
  } while (file_ < 0 && errno == EEXIST);
  if (file_ < 0) fail("making a temporary file beside it");
  temporary_ = name;
  if (!replaces) return;
  struct stat made {};
  if (file_calls().stat(temporary_.c_str(), &made) != 0) fail("reading the type of the temporary file");
  // Called only if needed, because some file systems have no permissions.
  if ((made.st_mode & kPermissionBits) == mode) return;
  if (file_calls().fchmod(file_, mode) != 0) fail("giving the temporary file the permissions of the old one");
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = uninterrupted([&] { return file_calls().write(file_, from, bytes); });
    if (written < 0) fail("writing");
    from += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::overwrite(off_t position, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = uninterrupted([&] { return file_calls().pwrite(file_, from, bytes, position); });
    if (written < 0) fail("writing");
    from += written;
    position += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  if (uninterrupted([&] { return file_calls().fsync(file_); }) != 0) fail("flushing the data to the disk");
  // close() frees the descriptor even if it returns an error such as EINTR.
  const int closed = file_calls().close(std::exchange(file_, -1));
  if (closed != 0 && errno != EINTR) fail("closing the temporary file");
  if (file_calls().rename(temporary_.c_str(), target_.c_str()) != 0) fail("renaming the temporary file");
  temporary_.clear();
  // Some file systems do not support this for a folder, and return EINVAL.
  const bool safe = uninterrupted([&] { return file_calls().fsync(folder_); }) == 0 || errno == EINVAL;
  const int error = errno;
  TORCH_CHECK(safe, "'", path_, "' is written, but flushing its folder to the disk failed: ", std::strerror(error),
              ". After a loss of power the earlier file may be back. ", remedy(error), ".");
}

void AtomicFile::discard() {
  if (file_ >= 0) file_calls().close(std::exchange(file_, -1));
  if (folder_ >= 0) file_calls().close(std::exchange(folder_, -1));
  if (!temporary_.empty()) file_calls().unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::fail(const char* what) {
  const int error = errno;
  discard();
  C10_THROW_ERROR(Error, c10::str("cannot write '", path_, "': ", what, " failed: ", std::strerror(error), ". ", remedy(error),
                                  ". An earlier file of this name is unchanged."));
}

// O_NONBLOCK: opening a pipe must not wait for a writer.
InputFile::InputFile(const std::string& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  TORCH_CHECK(file_ >= 0, "cannot read '", path, "': ", std::strerror(errno), ". Check the path and its permissions.");
  struct stat info {};
  const bool regular = ::fstat(file_, &info) == 0 && S_ISREG(info.st_mode);
  if (!regular) ::close(file_);  // no destructor runs when a constructor throws
  TORCH_CHECK(regular, "cannot read '", path, "': it is not a regular file. Check the path.");
  size_ = static_cast<uint64_t>(info.st_size);
}

InputFile::~InputFile() { ::close(file_); }

void InputFile::read(void* data, size_t bytes) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::read(file_, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK(got >= 0, "cannot read '", path_, "': ", std::strerror(errno), ". Check the disk.");
    TORCH_CHECK(got > 0, "cannot read '", path_, "': it ended while it was read, ", bytes,
                " bytes early. Is another program writing to it?");
    to += got;
    bytes -= static_cast<size_t>(got);
  }
}

namespace {

using Table = std::array<uint32_t, 256>;

/// table[b]: the change of the remainder by byte b.
constexpr Table make_table() {
  constexpr uint32_t kPolynomial = 0x82F63B78;  // lowest bit first
  Table table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ (remainder & 1 ? kPolynomial : 0);
    table[byte] = remainder;
  }
  return table;
}

constexpr Table kTable = make_table();

uint32_t add_bytes(uint32_t state, const unsigned char* from, size_t bytes) {
  for (; bytes > 0; --bytes, ++from) state = (state >> 8) ^ kTable[(state ^ *from) & 0xFF];
  return state;
}

#ifdef __x86_64__
// The processor has an instruction for this polynomial, which is ten times as fast.
__attribute__((target("sse4.2"))) uint32_t add_by_instruction(uint32_t state, const unsigned char* from, size_t bytes) {
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), from += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, from, sizeof word);
    state = static_cast<uint32_t>(__builtin_ia32_crc32di(state, word));
  }
  return add_bytes(state, from, bytes);
}

bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
#else
uint32_t add_by_instruction(uint32_t state, const unsigned char* from, size_t bytes) { return add_bytes(state, from, bytes); }

bool has_instruction() { return false; }
#endif

}  // namespace

void Crc32c::add(const void* data, size_t bytes) {
  static const bool fast = has_instruction();
  const auto* from = static_cast<const unsigned char*>(data);
  state_ = fast ? add_by_instruction(state_, from, bytes) : add_bytes(state_, from, bytes);
}

}  // namespace apex::amp::detail
