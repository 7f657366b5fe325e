#pragma once

#include <string>

namespace apex::opt_levels::detail {

/// The file's text. Errors: RuntimeError that names the file, as `what`, and the reason.
std::string read_file(const std::string& path, const std::string& what);

}  // namespace apex::opt_levels::detail
