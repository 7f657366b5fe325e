#pragma once

#include "tests/fuzz/target.h"

namespace apex::fuzz {

/// Damages a safetensors file: as bytes, or its header, metadata and data separately. It usually repairs the header's length,
/// and every other time the checksum, so that the reader reaches the code behind these checks.
std::string mutate_safetensors(std::string file, const std::vector<std::string>& corpus, Random& random);

}  // namespace apex::fuzz
