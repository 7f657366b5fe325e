#pragma once

#include <random>
#include <string>

// Ten well separated kinds of 8x8 image with noise, in the form of digits.csv.
inline std::string easy_digits() {
  std::mt19937 generator(1);
  int kinds[10][64];
  for (auto& kind : kinds) {
    for (auto& pixel : kind) {
      pixel = static_cast<int>(generator() % 2) * 10 + 2;
    }
  }
  std::string text;
  for (int row = 0; row < 300; ++row) {
    for (const auto pixel : kinds[row % 10]) {
      text += std::to_string(pixel + static_cast<int>(generator() % 5)) + ",";
    }
    text += std::to_string(row % 10) + "\n";
  }
  return text;
}
