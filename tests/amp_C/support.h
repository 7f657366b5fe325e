#pragma once

#include <apex_cpp/amp_C.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/errors.h"

namespace amp_C_test {

using apex::amp_C::TensorLists;
using apex::test::expect_error;
using Tensors = std::vector<at::Tensor>;

constexpr int kChunk = 65536;
// Hyperparameters of the optimizers' tests.
constexpr float kLr = 0.125f, kBeta1 = 0.75f, kBeta2 = 0.875f, kEps = 1e-3f;
constexpr int kStep = 3;

// Sizes next to the boundaries of vectors and chunks, and 0 in the middle and at the end.
inline const std::vector<int64_t>& sizes() {
  static const std::vector<int64_t> kSizes = {1, 7, 0, 33, 1000, 65537, 0};
  return kSizes;
}

inline Tensors random_list(at::ScalarType dtype, double spread = 1.0) {
  Tensors list;
  for (const int64_t size : sizes()) list.push_back((at::randn({size}, at::kDouble) * spread).to(dtype));
  return list;
}

// Positive values, for running means of squares.
inline Tensors positive_list(at::ScalarType dtype) {
  Tensors list;
  for (const int64_t size : sizes()) list.push_back((at::rand({size}, at::kDouble) + 0.1).to(dtype));
  return list;
}

inline Tensors zeros_list(at::ScalarType dtype) {
  Tensors list;
  for (const int64_t size : sizes()) list.push_back(at::zeros({size}, dtype));
  return list;
}

inline Tensors clones(const Tensors& list) {
  Tensors copies;
  for (const at::Tensor& tensor : list) copies.push_back(tensor.clone());
  return copies;
}

inline TensorLists clones(const TensorLists& lists) {
  TensorLists copies;
  for (const Tensors& list : lists) copies.push_back(clones(list));
  return copies;
}

inline at::Tensor flag(int value = 0) { return at::full({1}, value, at::kInt); }
inline at::Tensor scalar(double value, at::Device device = at::kCPU) {
  return at::full({1}, value, at::TensorOptions(device).dtype(at::kFloat));
}
inline at::Tensor int_scalar(int value, at::Device device = at::kCPU) {
  return at::full({1}, value, at::TensorOptions(device).dtype(at::kInt));
}

// The tolerance for up to two roundings to a dtype, by 2^-11 of a float16 or 2^-8 of a bfloat16 each. In float32 some twenty
// operations on values near 1 are rounded by 2^-24 = 6e-8 each; some of these values are larger than the result.
inline double rtol_of(at::ScalarType dtype) {
  if (dtype == at::kHalf) return 1e-3;
  if (dtype == at::kBFloat16) return 8e-3;
  return 4e-6;
}

// Expects each tensor to be close to the float64 tensor with the same index.
inline void expect_near(const Tensors& actual, const Tensors& expected, double atol = 2e-6) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const at::Tensor got = actual[i].to(at::kDouble);
    EXPECT_TRUE(at::allclose(got, expected[i], rtol_of(actual[i].scalar_type()), atol))
        << "tensor " << i << " of " << got.numel() << ": off by up to " << (got - expected[i]).abs().max().item<double>();
  }
}

inline void expect_equal(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << "tensor " << i;
    // A zero's sign is one of its bits.
    EXPECT_TRUE(at::equal(actual[i], expected[i]) && at::equal(actual[i].signbit(), expected[i].signbit())) << "tensor " << i;
  }
}

inline void expect_equal(const TensorLists& actual, const TensorLists& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    SCOPED_TRACE("list " + std::to_string(i));
    expect_equal(actual[i], expected[i]);
  }
}

inline Tensors as_double(const Tensors& list) {
  Tensors copies;
  for (const at::Tensor& tensor : list) copies.push_back(tensor.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true));
  return copies;
}

}  // namespace amp_C_test
