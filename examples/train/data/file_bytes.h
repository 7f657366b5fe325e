#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace train {

/// The whole content of `path`, or of `path` + ".gz" unpacked. Throws UserError naming the file where neither can be read.
std::vector<uint8_t> file_bytes(const std::string& path);

}  // namespace train
