#pragma once

#include <string>
#include <string_view>
#include <type_traits>

namespace apex {

/// Formats one field of a CSV table (RFC 4180, with "\n" after each row). Text with a separator, a quote or a line break is
/// quoted.
std::string csv_field(std::string_view text);
/// The shortest text that reads back as the same value; "inf", "-inf" and "nan" for other values.
std::string csv_field(float value);
std::string csv_field(double value);

/// Formats a row, with its line break. Fields are strings, numbers, and bools as 0 and 1.
template <class... Fields>
std::string csv_row(const Fields&... fields) {
  std::string row;
  const auto add = [&row](const auto& field) {
    if constexpr (std::is_integral_v<std::decay_t<decltype(field)>>) {
      row += std::to_string(field);
    } else {
      row += csv_field(field);
    }
    row += ',';
  };
  (add(fields), ...);
  row.back() = '\n';
  return row;
}

}  // namespace apex
