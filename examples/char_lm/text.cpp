#include "text.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path + ": " + std::strerror(errno) + ". Any text file will do.");
  return {std::istreambuf_iterator<char>(file), {}};
}

Sequences sequences_at(const at::Tensor& part, const at::Tensor& starts, int64_t context) {
  const auto places = starts.unsqueeze(1) + at::arange(context);
  return {part.take(places), part.take(places + 1)};
}

}  // namespace

Text::Text(const std::string& path, int64_t context) {
  const auto text = read_file(path);
  characters_ = text;
  std::sort(characters_.begin(), characters_.end());
  characters_.erase(std::unique(characters_.begin(), characters_.end()), characters_.end());

  const auto count = static_cast<int64_t>(text.size());
  if (count / 10 <= context) {
    throw std::runtime_error(path + ": " + std::to_string(count) + " characters are too few for a context of " +
                             std::to_string(context) + ": a tenth of the text is for validation");
  }
  auto numbers = at::empty({count}, at::kLong);
  std::transform(text.begin(), text.end(), numbers.mutable_data_ptr<int64_t>(),
                 [&](char c) { return std::lower_bound(characters_.begin(), characters_.end(), c) - characters_.begin(); });
  train_ = numbers.narrow(0, 0, count - count / 10);
  validation_ = numbers.narrow(0, count - count / 10, count / 10);
}

Sequences random_sequences(const at::Tensor& part, int64_t count, int64_t context) {
  return sequences_at(part, at::randint(part.size(0) - context, {count}, at::kLong), context);
}

Sequences all_sequences(const at::Tensor& part, int64_t context) {
  return sequences_at(part, at::arange(0, part.size(0) - context, context), context);
}
