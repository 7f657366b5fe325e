// Loads checkpoints into models and optimizers and trains with them.
#include "tests/checkpoint/memory_file.h"
#include "tests/fuzz/trained.h"

namespace apex::fuzz {

// Covers the file's text, the parsed description, tensors, and copies of the current state for restoring.
size_t most_memory(size_t input_bytes) { return (1 << 20) + 256 * input_bytes; }

}  // namespace apex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const apex::test::MemoryFile file(data, bytes);
  const auto load = [&](auto& net, auto& optimizer) { apex::amp::load_checkpoint(file.path(), net, optimizer); };
  apex::fuzz::trained_by_adam().take(load);
  apex::fuzz::trained_by_sgd().take(load);
  return 0;
}
