#include "data/mnist.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "data/file_bytes.h"
#include "errors.h"

namespace train {
namespace {

constexpr int64_t kMnistClasses = 10;

// An IDX file of bytes: two zeros, 8 (unsigned byte), the number of dimensions, each dimension as a big-endian 32-bit number.
struct IdxFile {
  std::vector<int64_t> sizes;
  std::vector<uint8_t> bytes;
  size_t begin = 0;  // of the data
};

int64_t big_endian(const uint8_t* at) { return int64_t{at[0]} << 24 | int64_t{at[1]} << 16 | int64_t{at[2]} << 8 | at[3]; }

IdxFile read_idx(const std::string& path, size_t dimensions) {
  IdxFile file;
  file.bytes = file_bytes(path);
  file.begin = 4 + 4 * dimensions;
  const auto& bytes = file.bytes;
  if (bytes.size() < file.begin) {
    throw UserError(path + ": " + std::to_string(bytes.size()) + " bytes are too few for an IDX header");
  }
  if (bytes[0] != 0 || bytes[1] != 0 || bytes[2] != 8 || bytes[3] != dimensions) {
    throw UserError(path + ": not an IDX file of unsigned bytes with " + std::to_string(dimensions) +
                    " dimensions (wrong magic number)");
  }
  const auto held = static_cast<int64_t>(bytes.size() - file.begin);
  int64_t expected = 1;
  for (size_t i = 0; i < dimensions; ++i) {
    file.sizes.push_back(big_endian(bytes.data() + 4 + 4 * i));
    // Once the product is beyond what the file holds it stays so; stopping there keeps it from overflowing.
    expected = expected > held ? expected : expected * file.sizes.back();
  }
  if (expected != held || held == 0) {
    throw UserError(path + ": the header promises " + (expected > held ? "more" : "other") + " data than the " +
                    std::to_string(held) + " bytes that follow it");
  }
  return file;
}

Dataset read_pair(const std::string& prefix) {
  const auto images = read_idx(prefix + "-images-idx3-ubyte", 3);
  const auto label_path = prefix + "-labels-idx1-ubyte";
  const auto labels = read_idx(label_path, 1);
  const auto count = images.sizes[0];
  if (labels.sizes[0] != count) {
    throw UserError(label_path + ": " + std::to_string(labels.sizes[0]) + " labels for " + std::to_string(count) + " images");
  }
  Dataset set{at::empty({count, 1, images.sizes[1], images.sizes[2]}, at::kByte), at::empty({count}, at::kLong)};
  std::copy(images.bytes.begin() + static_cast<std::ptrdiff_t>(images.begin), images.bytes.end(),
            set.images.mutable_data_ptr<uint8_t>());
  auto* out = set.labels.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    out[i] = labels.bytes[labels.begin + static_cast<size_t>(i)];
    if (out[i] >= kMnistClasses) {
      throw UserError(label_path + ": label " + std::to_string(out[i]) + " of image " + std::to_string(i) + " is not 0 to 9");
    }
  }
  return set;
}

}  // namespace

DataSplit load_mnist(const std::string& dir) {
  DataSplit data{read_pair(dir + "/train"), read_pair(dir + "/t10k"), kMnistClasses, {33.3}, {78.6}};
  if (data.train.images.sizes().slice(1) != data.test.images.sizes().slice(1)) {
    throw UserError(dir + ": the training and the test images differ in size");
  }
  return data;
}

}  // namespace train
