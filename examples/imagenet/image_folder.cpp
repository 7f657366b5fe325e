#include "image_folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <random>
#include <stdexcept>

#include "image_file.h"

namespace fs = std::filesystem;

namespace {

bool is_hidden(const fs::path& path) { return path.filename().string().front() == '.'; }

bool is_jpeg(const fs::path& path) {
  auto extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(), [](unsigned char c) { return std::tolower(c); });
  return extension == ".jpg" || extension == ".jpeg";
}

struct Box {
  int64_t top, left, height, width;
};

Box middle(int64_t height, int64_t width, int64_t box_height, int64_t box_width) {
  return {(height - box_height) / 2, (width - box_width) / 2, box_height, box_width};
}

/// Crops `box` from an image (height, width, 3), uint8, and scales it to (3, side, side), uint8.
at::Tensor resized(const at::Tensor& image, const Box& box, int64_t side) {
  const auto part = image.narrow(0, box.top, box.height).narrow(1, box.left, box.width).permute({2, 0, 1}).unsqueeze(0);
  const auto scaled = at::_upsample_bilinear2d_aa(part.to(at::kFloat), {side, side}, /*align_corners=*/false);
  return scaled.squeeze(0).round_().clamp_(0, 255).to(at::kByte);
}

/// A random crop: 8 to 100 % of the area, aspect ratio 3:4 to 4:3. After ten crops that do not fit, the largest centred square.
Box random_part(int64_t height, int64_t width, std::mt19937& random) {
  std::uniform_real_distribution<double> share(0.08, 1.0), log_ratio(std::log(3.0 / 4), std::log(4.0 / 3));
  for (int i = 0; i < 10; ++i) {
    const double area = share(random) * static_cast<double>(height * width), ratio = std::exp(log_ratio(random));
    const auto w = std::lround(std::sqrt(area * ratio)), h = std::lround(std::sqrt(area / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto top = std::uniform_int_distribution<int64_t>(0, height - h)(random);
    return {top, std::uniform_int_distribution<int64_t>(0, width - w)(random), h, w};
  }
  const auto side = std::min(height, width);
  return middle(height, width, side, side);
}

at::Tensor for_training(const at::Tensor& image, int64_t crop_size, std::mt19937 random) {
  const auto part = resized(image, random_part(image.size(0), image.size(1), random), crop_size);
  return std::bernoulli_distribution(0.5)(random) ? part.flip(2) : part;
}

at::Tensor for_validation(const at::Tensor& image, int64_t crop_size, int64_t val_size) {
  // The side, in pixels of the image, of a centre crop taken after scaling the short side to val_size.
  const auto short_side = std::min(image.size(0), image.size(1));
  const auto side = std::clamp<int64_t>(
      std::lround(static_cast<double>(short_side * crop_size) / static_cast<double>(val_size)), 1, short_side);
  return resized(image, middle(image.size(0), image.size(1), side, side), crop_size);
}

}  // namespace

ImageFiles::ImageFiles(const std::string& folder) : folder(folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && !is_hidden(entry.path())) classes.push_back(entry.path().filename().string());
  }
  std::sort(classes.begin(), classes.end());
  for (size_t i = 0; i < classes.size(); ++i) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(folder) / classes[i])) {
      if (entry.is_regular_file() && is_jpeg(entry.path()) && !is_hidden(entry.path()))
        files.emplace_back(entry.path().string(), i);
    }
  }
  if (files.empty()) throw std::runtime_error(folder + ": expected a folder for each class, with JPEG files in it");
  std::sort(files.begin(), files.end());
}

ImageFiles ImageFiles::part(int64_t rank, int64_t world_size) const {
  const auto begin_of = [&](int64_t r) { return files.begin() + static_cast<int64_t>(files.size()) * r / world_size; };
  auto part = *this;
  part.files.assign(begin_of(rank), begin_of(rank + 1));
  return part;
}

void check_same_classes(const ImageFiles& train, const ImageFiles& val) {
  const auto [of_train, of_val] =
      std::mismatch(train.classes.begin(), train.classes.end(), val.classes.begin(), val.classes.end());
  if (of_train == train.classes.end() && of_val == val.classes.end()) return;
  // Both lists are sorted, so the smaller of the two names is missing in the other list.
  const bool in_train = of_val == val.classes.end() || (of_train != train.classes.end() && *of_train < *of_val);
  throw std::runtime_error(
      (in_train ? train : val).folder + " has a folder for the class '" + (in_train ? *of_train : *of_val) + "', and " +
      (in_train ? val : train).folder +
      " has none: both folders need the same classes, because classes are numbered in the order of their names");
}

torch::data::Example<> ImageFolder::get(size_t index) {
  const auto& [path, label] = images_->files.at(index);
  auto file = read_image(path);
  const auto image = at::from_blob(file.rgb.data(), {file.height, file.width, 3}, at::kByte);
  if (!transform_.train_epoch) {
    return {for_validation(image, transform_.crop_size, transform_.val_size), at::scalar_tensor(label, at::kLong)};
  }
  // Each image of each epoch has its own random numbers, so they do not depend on the thread that reads it.
  std::seed_seq seed{static_cast<int64_t>(index), *transform_.train_epoch};
  return {for_training(image, transform_.crop_size, std::mt19937(seed)), at::scalar_tensor(label, at::kLong)};
}
