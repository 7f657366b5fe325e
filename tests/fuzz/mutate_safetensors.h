#pragma once

#include "tests/fuzz/target.h"

namespace apex::fuzz {

/// Damages a safetensors file: as bytes, or in header, metadata and data apart, most often with the header's length, and every
/// other time with the checksum, put right again so that the reader comes to what lies behind them.
std::string mutate_safetensors(std::string file, const std::vector<std::string>& corpus, Random& random);

}  // namespace apex::fuzz
