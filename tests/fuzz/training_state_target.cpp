// Loads training states, as Python's apex_cpp.training_state writes them, into models and optimizers and trains with them.
#include <apex_cpp/amp/training_state.h>

#include "tests/checkpoint/memory_file.h"
#include "tests/fuzz/trained.h"

namespace apex::fuzz {

// As of load_checkpoint, and options and states as JSON values.
size_t most_memory(size_t input_bytes) { return (1 << 20) + 512 * input_bytes; }

}  // namespace apex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const apex::test::MemoryFile file(data, bytes);
  const auto load = [&](auto& net, auto& optimizer) { apex::amp::load_from_python(file.path(), net, optimizer); };
  apex::fuzz::trained_by_adam().take(load);
  apex::fuzz::trained_by_sgd().take(load);
  return 0;
}
