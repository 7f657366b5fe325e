#pragma once

#include "tests/fuzz/target.h"

namespace apex::fuzz {

/// Flips a bit; puts in, takes out, doubles or moves a piece; cuts the end; or splices `text` with one of `others`.
std::string mutate_bytes(std::string text, const std::vector<std::string>& others, Random& random);

/// The same, or an edit that leaves most of the text's structure: another number in the place of one, a word of `words` put in.
std::string edit_text(std::string text, const std::vector<std::string>& others, const std::vector<std::string>& words,
                      Random& random);

/// One to three such edits.
std::string mutate_text(std::string text, const std::vector<std::string>& others, const std::vector<std::string>& words,
                        Random& random);

}  // namespace apex::fuzz
