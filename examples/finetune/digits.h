#pragma once
// scikit-learn's handwritten digits from a CSV file. Every fifth line belongs to the test set.
#include <torch/types.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Digits {
  torch::Tensor images;  // (count, 1, 8, 8), float32 from 0 to 1
  torch::Tensor labels;  // (count), int64 from 0 to 9

  int64_t size() const { return labels.size(0); }
  Digits at(const torch::Tensor& rows) const { return {images.index_select(0, rows), labels.index_select(0, rows)}; }
  /// All samples in random order, in batches of `size`.
  std::vector<Digits> batches(int64_t size) const {
    std::vector<Digits> all;
    for (const auto& rows : torch::randperm(this->size()).split(size)) all.push_back(at(rows));
    return all;
  }
};

struct DigitsSplit {
  Digits train, test;
};

/// Reads lines of 64 grey values from 0 to 16 and a label. Errors: std::runtime_error if the file is missing or malformed.
inline DigitsSplit read_digits(const std::string& path) {
  const std::string remedy =
      ". tools/setup downloads the digits. Then run zcat ~/.cache/apex_cpp/data/digits/digits.csv.gz > digits.csv";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path + ": " + std::strerror(errno) + remedy);
  std::vector<float> numbers;
  for (float number; file >> number; file.ignore()) numbers.push_back(number);
  if (numbers.empty() || !file.eof() || numbers.size() % 65 != 0) {
    throw std::runtime_error(path + ": expected lines of 64 grey values and a label, separated by commas" + remedy);
  }
  const auto lines = torch::tensor(numbers).view({-1, 65});
  const Digits all{lines.narrow(1, 0, 64).reshape({-1, 1, 8, 8}) / 16, lines.select(1, 64).to(torch::kLong)};
  const auto kept = torch::arange(all.size()).remainder(5).eq(0);
  return {all.at(kept.logical_not().nonzero().flatten()), all.at(kept.nonzero().flatten())};
}
