// Opt levels in the user's YAML.
#include <c10/util/Exception.h>

#include <cstdlib>

#include "opt_levels/opt_level.h"
#include "tests/fuzz/mutate_text.h"

namespace apex::fuzz {

// Covers the built-in cast lists, which an input may start from, and a tree with several objects per node; a single byte
// of input can make a node.
size_t most_memory(size_t input_bytes) { return (2 << 20) + 1024 * input_bytes; }

std::string mutate(std::string input, const std::vector<std::string>& corpus, Random& random) {
  static const std::vector<std::string> kWords = {":",
                                                  " ",
                                                  "\n",
                                                  "  ",
                                                  "- ",
                                                  "[",
                                                  "]",
                                                  "{",
                                                  "}",
                                                  "#",
                                                  "\"",
                                                  "'",
                                                  "&a ",
                                                  "*a",
                                                  "<<: *a\n",
                                                  "!!str ",
                                                  "---\n",
                                                  "? ",
                                                  "|\n",
                                                  ">\n",
                                                  "\t",
                                                  "null",
                                                  "true",
                                                  "no",
                                                  ".inf",
                                                  ".nan",
                                                  "O1",
                                                  "O9",
                                                  "float16",
                                                  "dynamic",
                                                  "%TAG",
                                                  "\xff",
                                                  "\xef\xbb\xbf",
                                                  "amp:\n",
                                                  "casts: {",
                                                  "loss_scale: ",
                                                  "opt_level: ",
                                                  "enabled: false\n"};
  return mutate_text(std::move(input), corpus, kWords, random);
}

}  // namespace apex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using apex::opt_levels::OptLevel;
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  try {
    const OptLevel level = OptLevel::from_yaml_string(text);
    // The level must survive writing and reading again.
    if (OptLevel::from_yaml_string(level.to_yaml()) != level) std::abort();
    ++apex::fuzz::inputs_read;
  } catch (const c10::Error&) {
  }
  return 0;
}
