// Checkpoints with an invalid description in a file with a valid checksum. The input is the description.
#include <apex_cpp/amp/checkpoint/content.h>
#include <c10/util/Exception.h>

#include <cstdlib>

#include "tests/fuzz/mutate_text.h"

namespace apex::fuzz {
namespace {

// The tensors that the corpus's descriptions refer to.
const amp::detail::TensorFile& tensors() {
  static const amp::detail::TensorFile file = [] {
    amp::detail::TensorFile all;
    for (const std::string name : {"LBFGS_O1", "SGD+FusedAdam_O2"}) {
      auto one = amp::detail::read_safetensors(std::string(CHECKPOINT_FOLDER) + "/" + name + ".safetensors");
      for (auto& tensor : one.tensors) all.tensors.push_back(std::move(tensor));
    }
    all.metadata = {{"format", "apex_cpp.checkpoint"}, {"version", "1"}, {"library", "0"}};
    return all;
  }();
  return file;
}

}  // namespace

// Covers a tree of objects, where two bytes of input can make an object, and the tensors, which are read with the first
// input.
size_t most_memory(size_t input_bytes) { return (2 << 20) + 1024 * input_bytes; }

std::string mutate(std::string input, const std::vector<std::string>& corpus, Random& random) {
  static const std::vector<std::string> kWords = {"{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ",",
                                                  ":",
                                                  "\"",
                                                  "null",
                                                  "true",
                                                  "-1",
                                                  "1e999",
                                                  "18446744073709551615",
                                                  "\"int\"",
                                                  "\"list\"",
                                                  "\"tuple\"",
                                                  "\"of\":\"int\"",
                                                  "\"none\":null",
                                                  "{\"tensor\":null}",
                                                  "{\"string\":\"x\"}",
                                                  "\"values\":{}",
                                                  "\"archives\":{}",
                                                  "\"optimizer0/state/0/d\"",
                                                  "\"generator/cpu\"",
                                                  "\"model0/fc1.weight\"",
                                                  "\\u0000",
                                                  "\xff"};
  return mutate_text(std::move(input), corpus, kWords, random);
}

}  // namespace apex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace apex::amp::detail;
  TensorFile file = apex::fuzz::tensors();
  file.metadata["checkpoint"] = std::string(reinterpret_cast<const char*>(data), bytes);
  try {
    // The content must survive writing and reading again.
    const TensorFile again = file_of(content_of(file));
    if (file_of(content_of(again)).metadata != again.metadata) std::abort();
    ++apex::fuzz::inputs_read;
  } catch (const c10::Error&) {
  }
  return 0;
}
