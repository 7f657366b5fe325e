#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/errors.h"

namespace test {

using apex::test::message_of;

// Values in [-1, 1) that depend on the seed only.
at::Tensor values(at::IntArrayRef sizes, int64_t seed, at::ScalarType dtype = at::kFloat);

// Leaf parameters of several sizes, including one element and an odd count.
std::vector<at::Tensor> make_params(int64_t seed, at::ScalarType dtype = at::kFloat);
// Sets the gradient of each parameter, in its dtype.
void set_grads(const std::vector<at::Tensor>& params, int64_t seed);
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors);

// True if both have the same bytes, so that NaN equals NaN and -0 differs from 0.
bool same_bytes(const at::Tensor& a, const at::Tensor& b);
bool same_bytes(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

// An optimizer as torch::save writes it, and the inverse.
std::string saved(const torch::optim::Optimizer& optimizer);
void load(torch::optim::Optimizer& optimizer, const std::string& bytes);

}  // namespace test
