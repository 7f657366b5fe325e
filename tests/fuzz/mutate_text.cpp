#include "tests/fuzz/mutate_text.h"

#include <algorithm>
#include <cctype>
#include <iterator>

namespace apex::fuzz {
namespace {

constexpr size_t kLongestPiece = 40;

std::string piece_of(const std::string& text, Random& random) {
  if (text.empty()) return "";
  return text.substr(pick(random, text.size()), 1 + pick(random, kLongestPiece));
}

/// A number at a limit of the types that readers count with.
std::string edge_number(Random& random) {
  static const char* const kNumbers[] = {"0",
                                         "1",
                                         "2",
                                         "7",
                                         "-1",
                                         "-0",
                                         "255",
                                         "65536",
                                         "2147483647",
                                         "2147483648",
                                         "4294967296",
                                         "1e3",
                                         "1e999",
                                         "1.5",
                                         "9223372036854775807",
                                         "-9223372036854775808",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "18446744073709551616",
                                         "4611686018427387905",
                                         "1e-320",
                                         "00",
                                         "100000000",
                                         "0x10"};
  return kNumbers[pick(random, std::size(kNumbers))];
}

std::string other_number(std::string text, Random& random) {
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  const auto from = text.begin() + static_cast<std::ptrdiff_t>(pick(random, text.size() + 1));
  const auto begin = std::find_if(from, text.end(), is_digit);
  const auto end = std::find_if_not(begin, text.end(), is_digit);
  if (begin == end) return text;
  // Off-by-one numbers are as useful as limits, for example in offsets.
  const std::string old(begin, end);
  const bool near = old.size() < 10 && one_in(random, 2);
  return text.replace(begin, end, near ? std::to_string(std::stol(old) + (one_in(random, 2) ? 1 : -1)) : edge_number(random));
}

}  // namespace

std::string mutate_bytes(std::string text, const std::vector<std::string>& others, Random& random) {
  if (text.empty()) return piece_of(others[pick(random, others.size())], random);
  const size_t at = pick(random, text.size());
  switch (pick(random, 8)) {
    case 0:
      text[at] = static_cast<char>(text[at] ^ (1 << pick(random, 8)));
      return text;
    case 1:
      text[at] = static_cast<char>(random());
      return text;
    case 2:
      return text.insert(at, 1 + pick(random, 8), static_cast<char>(random()));
    case 3:
      return text.erase(at, 1 + pick(random, kLongestPiece));
    case 4:
      return text.insert(at, piece_of(text, random));
    case 5:
      return text.insert(at, piece_of(others[pick(random, others.size())], random));
    case 6:
      return text.substr(0, at);
    default: {
      const auto& other = others[pick(random, others.size())];
      return text.substr(0, at) + (other.empty() ? "" : other.substr(pick(random, other.size())));
    }
  }
}

std::string edit_text(std::string text, const std::vector<std::string>& others, const std::vector<std::string>& words,
                      Random& random) {
  switch (pick(random, 3)) {
    case 0:
      return mutate_bytes(std::move(text), others, random);
    case 1:
      return other_number(std::move(text), random);
    default: {
      // Sometimes repeats very often: depth and length must not matter.
      const size_t times = one_in(random, 50) ? 1 + pick(random, 20'000) : 1;
      const auto& word = words[pick(random, words.size())];
      std::string repeated;
      for (size_t i = 0; i < times; ++i) repeated += word;
      return text.insert(pick(random, text.size() + 1), repeated);
    }
  }
}

std::string mutate_text(std::string text, const std::vector<std::string>& others, const std::vector<std::string>& words,
                        Random& random) {
  for (size_t edits = 1 + pick(random, 3); edits > 0; --edits) text = edit_text(std::move(text), others, words, random);
  return text;
}

}  // namespace apex::fuzz
