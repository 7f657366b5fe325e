#include "data/digits.h"

#include <algorithm>
#include <charconv>

#include <ATen/ops/empty.h>

#include "data/file_bytes.h"
#include "data/split.h"
#include "errors.h"

namespace train {
namespace {

constexpr int64_t kDigitSide = 8;
constexpr int64_t kDigitPixels = kDigitSide * kDigitSide;
constexpr int kDarkest = 16;
constexpr int64_t kDigitClasses = 10;

// Reads one comma-separated row of kDigitPixels values and a label; false where it has another form.
bool read_row(const char* at, const char* end, uint8_t* pixels, int64_t& label) {
  for (int64_t column = 0; column <= kDigitPixels; ++column) {
    int value = -1;
    const auto [next, error] = std::from_chars(at, end, value);
    const bool last = column == kDigitPixels;
    if (error != std::errc() || value < 0 || value > (last ? kDigitClasses - 1 : kDarkest) ||
        (last ? next != end : next == end || *next != ',')) {
      return false;
    }
    if (last) {
      label = value;
    } else {
      pixels[column] = static_cast<uint8_t>(value);
      at = next + 1;
    }
  }
  return true;
}

Dataset parse_rows(const std::vector<uint8_t>& bytes, const std::string& path) {
  std::vector<uint8_t> pixels;
  std::vector<int64_t> labels;
  const auto* at = reinterpret_cast<const char*>(bytes.data());
  const auto* const end = at + bytes.size();
  for (int64_t row = 1; at != end; ++row) {
    const auto* stop = std::find(at, end, '\n');
    const auto* next = stop == end ? end : stop + 1;
    stop -= stop != at && stop[-1] == '\r';
    pixels.resize(pixels.size() + kDigitPixels);
    labels.push_back(0);
    if (!read_row(at, stop, pixels.data() + pixels.size() - kDigitPixels, labels.back())) {
      throw UserError(path + ":" + std::to_string(row) +
                      ": expected 64 values from 0 to 16 and a label from 0 to 9, separated by commas");
    }
    at = next;
  }
  const auto count = static_cast<int64_t>(labels.size());
  Dataset all{at::empty({count, 1, kDigitSide, kDigitSide}, at::kByte), at::empty({count}, at::kLong)};
  std::copy(pixels.begin(), pixels.end(), all.images.mutable_data_ptr<uint8_t>());
  std::copy(labels.begin(), labels.end(), all.labels.mutable_data_ptr<int64_t>());
  return all;
}

}  // namespace

DataSplit load_digits(const std::string& dir) {
  const auto path = dir + "/digits.csv";
  const auto all = parse_rows(file_bytes(path), path);
  DataSplit data;
  data.classes = kDigitClasses;
  data.mean = {4.884};
  data.std_dev = {6.017};
  stratified_split(all, kDigitClasses, 0.2, data.train, data.test);
  if (data.train.size() == 0 || data.test.size() == 0) {
    throw UserError(path + ": " + std::to_string(all.size()) + " rows are too few for a train and a test set");
  }
  return data;
}

}  // namespace train
