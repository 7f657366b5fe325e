// Safetensors files from untrusted sources.
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <c10/util/Exception.h>

#include "tests/checkpoint/memory_file.h"
#include "tests/fuzz/target.h"

namespace apex::fuzz {

// A reader holds the header's text, its parsed form and tensors. The object of an empty tensor is larger than its text.
size_t most_memory(size_t input_bytes) { return (64 << 10) + 32 * input_bytes; }

}  // namespace apex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const apex::test::MemoryFile file(data, bytes);
  try {
    apex::amp::detail::read_safetensors(file.path());
    ++apex::fuzz::inputs_read;
  } catch (const c10::Error&) {
  }
  return 0;
}
