#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace train {

/// Labelled images as they lie in the files.
struct Dataset {
  at::Tensor images;  // uint8 [N, C, H, W]
  at::Tensor labels;  // int64 [N], 0 .. classes - 1

  int64_t size() const { return labels.defined() ? labels.size(0) : 0; }
};

/// A data set with its fixed split, and what turns its bytes into a network's input.
struct DataSplit {
  Dataset train;
  Dataset test;
  int64_t classes = 0;
  std::vector<double> mean;  // of each channel, in the files' units
  std::vector<double> std_dev;
  int64_t image_size = 0;  // height and width in which a network gets images; 0: those of the files
};

/// Channels, height and width of the images.
struct ImageShape {
  int64_t channels = 1;
  int64_t height = 8;
  int64_t width = 8;
};

/// Of the images as a network gets them.
ImageShape shape_of(const DataSplit& data);

/// Float32 images as a network gets them: resized, with bilinear interpolation that averages where it makes them smaller, and
/// each channel shifted and scaled to about mean 0 and deviation 1. They stay on their device.
at::Tensor normalized(const at::Tensor& images, const DataSplit& data);

}  // namespace train
