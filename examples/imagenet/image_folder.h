#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// The JPEG files of a folder with one subfolder per class. Classes are numbered in the order of their names. Hidden files and
/// folders are skipped.
struct ImageFiles {
  /// Errors: std::runtime_error if the folder has no images.
  explicit ImageFiles(const std::string& folder);

  /// The files of process `rank` of `world_size`; it may have none. Every file belongs to exactly one process.
  ImageFiles part(int64_t rank, int64_t world_size) const;

  std::string folder;
  std::vector<std::string> classes;
  std::vector<std::pair<std::string, int64_t>> files;  // path and class
};

/// Errors: std::runtime_error that names the first class that only one folder has; the classes after it would be numbered
/// differently.
void check_same_classes(const ImageFiles& train, const ImageFiles& val);

/// The transform of an image for a network that takes `crop_size`.
struct Transform {
  int64_t crop_size = 224;
  /// For validation: scales the short side to val_size and crops the centre.
  int64_t val_size = 256;
  /// For training: a random crop, mirrored half of the time. It differs between epochs and is the same in every run.
  std::optional<int64_t> train_epoch;
};

/// A dataset for LibTorch's data loader. Each loader worker decodes images in its own thread: (3, crop_size, crop_size), uint8,
/// and the class (), int64. Cheap to copy.
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
