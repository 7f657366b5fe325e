#include "opt_levels/detail/values.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <numeric>
#include <string_view>
#include <utility>

namespace apex::opt_levels::detail {
namespace {

// The Levenshtein distance, computed row by row.
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

std::string lower_case(std::string word) {
  for (auto& letter : word) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return word;
}

// The maximum number of edits of a misspelling. In a word of three letters, two edits could give any other word.
std::size_t max_edits(const std::string& word) { return word.size() <= 3 ? 1 : std::max<std::size_t>(2, word.size() / 3); }

// True for the name of a 16-bit type. Where a policy is expected, the policy is `half`: the level determines the type.
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
  std::size_t fewest = max_edits(word) + 1;
  for (const auto& candidate : known) {
    const std::size_t edits = edits_between(lower_case(word), lower_case(candidate));
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

namespace {

constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 5> kTypes{{
    {"float16", c10::ScalarType::Half},
    {"bfloat16", c10::ScalarType::BFloat16},
    {"float32", c10::ScalarType::Float},
    {"half", c10::ScalarType::Half},
    {"float", c10::ScalarType::Float},
}};

constexpr std::array<std::pair<std::string_view, Cpu16Bit>, 3> kCpu16Bit{{
    {"auto", Cpu16Bit::automatic},
    {"native", Cpu16Bit::native},
    {"float32", Cpu16Bit::float32},
}};

constexpr std::array<std::pair<std::string_view, Float8Recipe>, 5> kFloat8Recipes{{
    {"none", Float8Recipe::none},
    {"current", Float8Recipe::current},
    {"delayed", Float8Recipe::delayed},
    {"block128", Float8Recipe::block128},
    {"mx", Float8Recipe::mx},
}};

constexpr std::array<std::pair<std::string_view, Float8Format>, 2> kFloat8Formats{{
    {"e4m3", Float8Format::e4m3},
    {"e5m2", Float8Format::e5m2},
}};

// Sets `value` to the one of that name, or returns `allowed`.
template <class Names, class Value>
const char* parse_name(const Names& names, const std::string& text, Value& value, const char* allowed) {
  const auto found = std::find_if(names.begin(), names.end(), [&](const auto& pair) { return pair.first == text; });
  if (found == names.end()) return allowed;
  value = found->second;
  return nullptr;
}

// The names are in the order of the enumeration.
template <class Names, class Value>
std::string name_at(const Names& names, Value value) {
  return std::string(names.at(static_cast<size_t>(value)).first);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

template <class Number>
std::optional<Number> parse_whole(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

}  // namespace

std::optional<double> parse_number(const std::string& text) { return parse_whole<double>(trimmed(text)); }

bool Scalar::is_none() const { return !quoted && is_one_of(text, {"", "~", "none", "None", "null", "Null", "NULL"}); }

const char* parse_value(const Scalar& scalar, bool& value) {
  const bool yes = is_one_of(scalar.text, {"true", "True"});
  if (scalar.quoted || (!yes && !is_one_of(scalar.text, {"false", "False"}))) return "true or false";
  value = yes;
  return nullptr;
}

const char* parse_value(const Scalar& scalar, std::int64_t& value) {
  const auto number = parse_whole<std::int64_t>(scalar.text);
  if (scalar.quoted || !number) return "an integer";
  value = *number;
  return nullptr;
}

const char* parse_value(const Scalar& scalar, double& value) {
  const auto number = parse_number(scalar.text);
  if (scalar.quoted || !number) return "a number";
  value = *number;
  return nullptr;
}

const char* parse_value(const Scalar& scalar, std::string& value) {
  if (scalar.is_none()) return "text";
  value = scalar.text;
  return nullptr;
}

const char* parse_value(const Scalar& scalar, c10::ScalarType& value) {
  return parse_name(kTypes, scalar.text, value, "float16 (half), bfloat16 or float32 (float)");
}

const char* parse_value(const Scalar& scalar, LossScale& value) {
  if (scalar.text == "dynamic") {
    value.dynamic = true;
    return nullptr;
  }
  const auto number = parse_number(scalar.text);
  if (!number) return "a positive number or dynamic";
  value = *number;
  return nullptr;
}

const char* parse_value(const Scalar& scalar, Cpu16Bit& value) {
  return parse_name(kCpu16Bit, scalar.text, value, "auto, native or float32");
}

const char* parse_value(const Scalar& scalar, Float8Recipe& value) {
  return parse_name(kFloat8Recipes, scalar.text, value, "none, current, delayed, block128 or mx");
}

const char* parse_value(const Scalar& scalar, Float8Format& value) {
  return parse_name(kFloat8Formats, scalar.text, value, "e4m3 or e5m2");
}

const char* parse_value(const Scalar& scalar, std::optional<bool>& value) {
  if (scalar.is_none()) {
    value.reset();
    return nullptr;
  }
  bool given = false;
  if (parse_value(scalar, given)) return "true, false or none";
  value = given;
  return nullptr;
}

const char* parse_value(const Scalar& scalar, std::optional<c10::ScalarType>& value) {
  if (scalar.is_none() || (!scalar.quoted && is_one_of(scalar.text, {"false", "False"}))) {
    value.reset();
    return nullptr;
  }
  c10::ScalarType given{};
  if (parse_value(scalar, given)) return "float16 (half), bfloat16, float32 (float), or false to leave the model alone";
  value = given;
  return nullptr;
}

std::string value_text(bool value) { return value ? "true" : "false"; }

std::string value_text(std::int64_t value) { return std::to_string(value); }

// The shortest text that reads back as the same number and does not look like an integer.
std::string value_text(double value) {
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), result.ptr);
  return text.find_first_of(".einf") == std::string::npos ? text + ".0" : text;
}

std::string value_text(c10::ScalarType value) {
  for (const auto& [name, type] : kTypes) {
    if (type == value) return std::string(name);
  }
  return c10::toString(value);
}

std::string value_text(const LossScale& value) { return value.dynamic ? "dynamic" : value_text(value.value); }

std::string value_text(Cpu16Bit value) { return name_at(kCpu16Bit, value); }

std::string value_text(Float8Recipe value) { return name_at(kFloat8Recipes, value); }

std::string value_text(Float8Format value) { return name_at(kFloat8Formats, value); }

std::string value_text(const std::optional<bool>& value) { return value ? value_text(*value) : "none"; }

std::string value_text(const std::optional<c10::ScalarType>& value) { return value ? value_text(*value) : "none"; }

}  // namespace apex::opt_levels::detail
