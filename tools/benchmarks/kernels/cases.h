#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace bench::kernels {

using Tensors = std::vector<at::Tensor>;
using Shapes = std::vector<std::vector<int64_t>>;

/// The parameter shapes of a model, all that matters for speed.
struct Case {
  std::string name;
  Shapes shapes;
};

/// All cases: from one tensor of one element to 64 Mi elements, and from 4 tensors to 25,000.
const std::vector<Case>& cases();

int64_t numel_of(const Case& shapes);

/// Tensors of normally distributed values; or of one value everywhere.
Tensors random(const Case& shapes, at::ScalarType dtype, at::Device device);
Tensors filled(const Case& shapes, at::ScalarType dtype, at::Device device, double value);

}  // namespace bench::kernels
