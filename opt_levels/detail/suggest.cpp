#include "opt_levels/detail/suggest.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace apex::opt_levels::detail {
namespace {

// Levenshtein's distance, row by row.
std::size_t edits_between(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row.back();
}

std::string in_small_letters(std::string word) {
  for (auto& letter : word) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return word;
}

// How many edits may make a word of a known one. In a word of three letters two would leave any other.
std::size_t most_edits(const std::string& word) { return word.size() <= 3 ? 1 : std::max<std::size_t>(2, word.size() / 3); }

// What 16-bit types are called; where a policy is asked for, the level says which of them `half` is.
bool is_16bit_type(const std::string& word) {
  return word == "float16" || word == "fp16" || word == "bfloat16" || word == "bf16";
}

}  // namespace

std::string join(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  const bool has_half = std::find(known.begin(), known.end(), "half") != known.end();
  if (has_half && is_16bit_type(word)) return "half";
  std::string found;
  std::size_t fewest = most_edits(word) + 1;
  for (const auto& candidate : known) {
    const std::size_t edits = edits_between(in_small_letters(word), in_small_letters(candidate));
    if (edits < fewest) {
      fewest = edits;
      found = candidate;
    }
  }
  return found;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string found = nearest(word, known);
  return found.empty() ? "" : " Did you mean '" + found + "'?";
}

}  // namespace apex::opt_levels::detail
