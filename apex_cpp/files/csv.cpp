#include <apex_cpp/files/csv.h>

#include <charconv>
#include <cmath>

namespace apex {
namespace {

template <class Number>
std::string shortest(Number value) {
  if (std::isnan(value)) return "nan";  // also for a NaN with a sign bit
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

}  // namespace

std::string csv_field(float value) { return shortest(value); }
std::string csv_field(double value) { return shortest(value); }

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? "\"\"" : std::string(1, c);
  return field + "\"";
}

}  // namespace apex
