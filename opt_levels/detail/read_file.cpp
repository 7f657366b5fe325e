#include "opt_levels/detail/read_file.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace apex::opt_levels::detail {

std::string read_file(const std::string& path, const std::string& what) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file && !is_folder, "cannot read the ", what, " '", path,
              "': ", is_folder ? "it is a folder" : std::strerror(errno), ".");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace apex::opt_levels::detail
