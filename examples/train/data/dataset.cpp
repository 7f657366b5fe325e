#include "data/dataset.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/from_blob.h>

namespace train {
namespace {

at::Tensor per_channel(std::vector<double> values, const at::Tensor& like) {
  const auto count = static_cast<int64_t>(values.size());
  const auto on_host = at::from_blob(values.data(), {1, count, 1, 1}, at::TensorOptions().dtype(at::kDouble));
  return on_host.to(like.device(), at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor resized(const at::Tensor& images, int64_t size) {
  if (size == 0) return images;
  return at::_upsample_bilinear2d_aa(images, {size, size}, /*align_corners=*/false);
}

}  // namespace

ImageShape shape_of(const DataSplit& data) {
  const auto& images = data.train.images;
  if (data.image_size > 0) return {images.size(1), data.image_size, data.image_size};
  return {images.size(1), images.size(2), images.size(3)};
}

at::Tensor normalized(const at::Tensor& images, const DataSplit& data) {
  const auto values = resized(images.to(at::kFloat), data.image_size);
  return (values - per_channel(data.mean, images)) / per_channel(data.std_dev, images);
}

}  // namespace train
