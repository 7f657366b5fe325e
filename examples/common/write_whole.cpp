#include "common/write_whole.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "common/user_error.h"

namespace common {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) {
  const auto parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void check_writable(const std::string& path) {
  const auto cannot = "cannot write '" + path + "': ";
  const auto folder = folder_of(path);
  if (access((folder + "/").c_str(), W_OK | X_OK) != 0) {
    throw UserError(cannot + "folder '" + folder + "': " + std::strerror(errno));
  }
  if (fs::exists(path) && !fs::is_regular_file(path)) {
    throw UserError(cannot + "it is not a regular file; name another");
  }
}

void write_whole(const std::string& path, const std::string& content) {
  check_writable(path);
  const auto part = path + ".part";
  std::ofstream file(part, std::ios::trunc | std::ios::binary);
  file << content;
  file.close();
  if (!file) throw UserError("cannot write '" + path + "': " + std::strerror(errno));
  std::error_code error;
  fs::rename(part, path, error);
  if (error) throw UserError("cannot write '" + path + "': " + error.message());
}

}  // namespace common
