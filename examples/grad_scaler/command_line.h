#pragma once
// Command line parsing.
#include <charconv>
#include <stdexcept>
#include <string>

/// Parses a number of epochs. Errors: std::invalid_argument, which shows the usage, unless `text` is a whole number of at least
/// 1.
inline int read_epochs(const std::string& text, const std::string& usage) {
  int epochs = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, epochs);
  if (error != std::errc() || stop != end || epochs < 1) {
    throw std::invalid_argument("epochs: expected a whole number from 1 on, got '" + text + "'\nusage: " + usage);
  }
  return epochs;
}
