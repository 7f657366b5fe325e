#include "data/cifar10.h"

#include <algorithm>
#include <filesystem>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "data/file_bytes.h"
#include "errors.h"

namespace train {
namespace {

constexpr int64_t kCifarClasses = 10;
constexpr int64_t kCifarChannels = 3;
constexpr int64_t kCifarSide = 32;
constexpr int64_t kCifarPixels = kCifarChannels * kCifarSide * kCifarSide;
constexpr int64_t kRecord = 1 + kCifarPixels;  // the label, then red, green and blue planes

Dataset read_batch(const std::string& path) {
  const auto bytes = file_bytes(path);
  const auto held = static_cast<int64_t>(bytes.size());
  if (held == 0 || held % kRecord != 0) {
    throw UserError(path + ": " + std::to_string(held) + " bytes are not whole records of " + std::to_string(kRecord) +
                    " bytes");
  }
  const auto count = held / kRecord;
  Dataset set{at::empty({count, kCifarChannels, kCifarSide, kCifarSide}, at::kByte), at::empty({count}, at::kLong)};
  auto* pixels = set.images.mutable_data_ptr<uint8_t>();
  auto* labels = set.labels.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const auto* record = bytes.data() + i * kRecord;
    labels[i] = record[0];
    if (labels[i] >= kCifarClasses) {
      throw UserError(path + ": label " + std::to_string(labels[i]) + " of image " + std::to_string(i) + " is not 0 to 9");
    }
    std::copy(record + 1, record + kRecord, pixels + i * kCifarPixels);
  }
  return set;
}

}  // namespace

DataSplit load_cifar10(const std::string& dir) {
  const auto unpacked = dir + "/cifar-10-batches-bin";
  const auto root = std::filesystem::is_directory(unpacked) ? unpacked : dir;
  std::vector<at::Tensor> images, labels;
  for (int batch = 1; batch <= 5; ++batch) {
    const auto set = read_batch(root + "/data_batch_" + std::to_string(batch) + ".bin");
    images.push_back(set.images);
    labels.push_back(set.labels);
  }
  DataSplit data{{at::cat(images), at::cat(labels)},
                 read_batch(root + "/test_batch.bin"),
                 kCifarClasses,
                 {125.3, 123.0, 113.9},
                 {63.0, 62.1, 66.7}};
  return data;
}

}  // namespace train
