// Gives libFuzzer the driver's mutations in addition to its own.
#include <c10/util/Logging.h>

#include <algorithm>

#include "tests/fuzz/target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t bytes, size_t most);

// Most inputs end in an error; computing its stack trace would dominate the run time.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  c10::SetStackTraceFetcher([] { return std::string(); });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t bytes, size_t most, unsigned seed) {
  apex::fuzz::Random random(seed);
  if (apex::fuzz::one_in(random, 4)) return LLVMFuzzerMutate(data, bytes, most);
  const std::string input(reinterpret_cast<const char*>(data), bytes);
  const std::string changed = apex::fuzz::mutate(input, {input}, random);
  const size_t kept = std::min(changed.size(), most);
  std::copy_n(changed.begin(), kept, data);
  return kept;
}
