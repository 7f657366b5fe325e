// Gives libFuzzer the driver's mutations in addition to its own.
#include <algorithm>

#include "tests/fuzz/target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t bytes, size_t most);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t bytes, size_t most, unsigned seed) {
  apex::fuzz::Random random(seed);
  if (apex::fuzz::one_in(random, 4)) return LLVMFuzzerMutate(data, bytes, most);
  const std::string input(reinterpret_cast<const char*>(data), bytes);
  const std::string changed = apex::fuzz::mutate(input, {input}, random);
  const size_t kept = std::min(changed.size(), most);
  std::copy_n(changed.begin(), kept, data);
  return kept;
}
