#include "opt_levels/detail/suggest.h"

#include <algorithm>
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

// What 16-bit types are called; where a policy is asked for, the level says which of them `half` is.
bool is_16bit_type(const std::string& word) {
  return word == "float16" || word == "fp16" || word == "bfloat16" || word == "bf16";
}

}  // namespace

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const bool has_half = std::find(known.begin(), known.end(), "half") != known.end();
  if (has_half && is_16bit_type(word)) return " Did you mean 'half'?";
  std::string nearest;
  std::size_t fewest = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const auto& candidate : known) {
    const std::size_t edits = edits_between(word, candidate);
    if (edits < fewest) {
      fewest = edits;
      nearest = candidate;
    }
  }
  return nearest.empty() ? "" : " Did you mean '" + nearest + "'?";
}

}  // namespace apex::opt_levels::detail
