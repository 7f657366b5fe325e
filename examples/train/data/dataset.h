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
};

/// Float32 images, each channel shifted and scaled to about mean 0 and deviation 1. Images keep shape and device.
at::Tensor normalized(const at::Tensor& images, const DataSplit& data);

}  // namespace train
