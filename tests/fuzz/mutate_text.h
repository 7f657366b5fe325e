#pragma once

#include "tests/fuzz/target.h"

namespace apex::fuzz {

/// Flips a bit; inserts, removes, duplicates or moves a piece; truncates; or splices `text` with one of `others`.
std::string mutate_bytes(std::string text, const std::vector<std::string>& others, Random& random);

/// As mutate_bytes, or an edit that keeps most of the text's structure: replaces a number or inserts a word of `words`.
std::string edit_text(std::string text, const std::vector<std::string>& others, const std::vector<std::string>& words,
                      Random& random);

/// Applies one to three edits of `edit_text`.
std::string mutate_text(std::string text, const std::vector<std::string>& others, const std::vector<std::string>& words,
                        Random& random);

}  // namespace apex::fuzz
