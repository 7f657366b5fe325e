#include "data/dataset.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>

namespace train {
namespace {

at::Tensor per_channel(std::vector<double> values, const at::Tensor& like) {
  const auto count = static_cast<int64_t>(values.size());
  const auto on_host = at::from_blob(values.data(), {1, count, 1, 1}, at::TensorOptions().dtype(at::kDouble));
  return on_host.to(like.device(), at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

at::Tensor normalized(const at::Tensor& images, const DataSplit& data) {
  return (images.to(at::kFloat) - per_channel(data.mean, images)) / per_channel(data.std_dev, images);
}

}  // namespace train
