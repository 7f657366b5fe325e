#pragma once
// Normalizations in every mix of dtypes, their float64 reference, and the error bounds.
#include <apex_cpp/normalization.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace normalization_test {

using at::Tensor;

enum class Kind { layer, rms };

struct Mix {
  Kind kind;
  at::ScalarType input, weight;
  bool affine = true;

  bool is_mixed() const { return input != weight; }
};

std::string name_of(const Mix& mix);
inline std::string param_name(const ::testing::TestParamInfo<Mix>& info) { return name_of(info.param); }
const std::vector<Mix>& all_mixes();

// Sizes next to the boundaries of vectors, warps, strips and segments.
const std::vector<int64_t>& sizes();

// A normalization of `rows` rows of `size`, and the gradient of its output.
struct Case {
  Mix mix;
  Tensor input, weight, bias, grad_output;
  double eps = 1e-5;
  bool memory_efficient = false;
};

Case random_case(const Mix& mix, int64_t rows, int64_t size, double input_mean = 0.5);

struct Result {
  Tensor output, grad_input, grad_weight, grad_bias;
};

// Forward and backward through the public functions.
Tensor output_of(const Case& c, const Tensor& input, const Tensor& weight, const Tensor& bias);
Result run(const Case& c);

// The reference: float64 autograd over plain operators, from the stored values; and bounds for the difference.
Result truth(const Case& c);
Result bounds(const Case& c);

// True if |actual - expected| <= bound everywhere.
::testing::AssertionResult within(const Tensor& actual, const Tensor& expected, const Tensor& bound);
::testing::AssertionResult same_bits(const Tensor& actual, const Tensor& expected);

void expect_true_to(const Case& c, const Result& actual);
void expect_same_bits(const Result& actual, const Result& expected);

}  // namespace normalization_test
