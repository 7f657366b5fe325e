#pragma once

#include <string>
#include <string_view>
#include <type_traits>

namespace apex {

/// One field of a table of comma-separated values, as all tables of this project have them (RFC 4180, with "\n" behind a row).
/// Text that holds a separator, a quote or a line break is put in quotes.
std::string csv_field(std::string_view text);
/// The shortest text that reads back as the same value; "inf", "-inf" and "nan" for what is not finite.
std::string csv_field(float value);
std::string csv_field(double value);

/// A row of the fields: texts, floating point numbers, integers, and bools as 0 and 1. Answers it with the line break.
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
