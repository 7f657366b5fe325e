#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// The JPEG files of a folder with a folder for each class; classes are numbered in the order of their names. What begins with
/// a dot is passed over.
struct ImageFiles {
  /// Errors: std::runtime_error if there are none.
  explicit ImageFiles(const std::string& folder);

  /// The files for process `rank` of `world_size`, some of which may get none; all of them together have each file once.
  ImageFiles part(int64_t rank, int64_t world_size) const;

  std::string folder;
  std::vector<std::string> classes;
  std::vector<std::pair<std::string, int64_t>> files;  // path and class
};

/// Errors: std::runtime_error that names the first class which one of them has alone: it would shift the numbers of all others.
void check_same_classes(const ImageFiles& train, const ImageFiles& val);

/// What is done to an image before a network of `crop_size` sees it.
struct Transform {
  int64_t crop_size = 224;
  /// For validation: the middle of the image, whose short side is scaled to so many pixels.
  int64_t val_size = 256;
  /// For training: a random part, mirrored half of the time; another one in each epoch, the same in each run.
  std::optional<int64_t> train_epoch;
};

/// Images as LibTorch's data loader reads them, with as many threads as it has workers: (3, crop_size, crop_size), uint8, and
/// the class (), int64. A copy is cheap.
class ImageFolder : public torch::data::datasets::Dataset<ImageFolder> {
 public:
  ImageFolder(std::shared_ptr<const ImageFiles> images, Transform transform)
      : images_(std::move(images)), transform_(transform) {}

  torch::data::Example<> get(size_t index) override;
  torch::optional<size_t> size() const override { return images_->files.size(); }

 private:
  std::shared_ptr<const ImageFiles> images_;
  Transform transform_;
};
