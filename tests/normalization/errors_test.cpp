// NORM-03, NORM-04, NORM-06: invalid arguments are errors that name them.
#include "tests/amp/support.h"
#include "tests/amp/warnings.h"
#include "tests/normalization/support.h"

namespace normalization_test {
namespace {

namespace norm = apex::normalization;
using apex::test::contains;
using apex::test::message_of;

TEST(NormErrors, Norm06MismatchedShapes) {
  const Tensor x = torch::ones({4, 6}), w = torch::ones({6});
  EXPECT_THROW(norm::fused_layer_norm(x, {5}), c10::Error);
  EXPECT_TRUE(contains(message_of([&] { norm::fused_layer_norm(x, {5}); }), "[4, 6]"));
  EXPECT_TRUE(contains(message_of([&] { norm::fused_rms_norm(x, {2, 4, 6}); }), "[2, 4, 6]"));
  EXPECT_TRUE(contains(message_of([&] { norm::fused_rms_norm(x, {}); }), "normalized_shape is empty"));
  EXPECT_TRUE(
      contains(message_of([&] { norm::fused_layer_norm_affine(x, torch::ones({4}), w, {6}); }), "weight has shape [4]"));
  EXPECT_TRUE(contains(message_of([&] { norm::fused_layer_norm_affine(x, w, torch::ones({1}), {6}); }), "bias has shape [1]"));
  EXPECT_TRUE(contains(message_of([&] { norm::manual_rms_norm(x, {5}, {}, 1e-5); }), "manual_rms_norm"));
}

TEST(NormErrors, Norm03MismatchedDtypes) {
  const Tensor x = torch::ones({4, 6}), w = torch::ones({6}), half = w.to(at::kHalf);
  const std::string message = message_of([&] { norm::fused_layer_norm_affine(x, half, half, {6}); });
  EXPECT_TRUE(contains(message, "the input is Float and weight is Half"));
  EXPECT_TRUE(contains(message, "mixed_dtype_fused_layer_norm_affine"));
  EXPECT_THROW(norm::fused_rms_norm_affine(x.to(at::kBFloat16), w, {6}), c10::Error);
  EXPECT_TRUE(contains(message_of([&] { norm::fused_layer_norm_affine(x, w, half, {6}); }), "bias is Half"));
  EXPECT_TRUE(contains(message_of([&] { norm::fused_rms_norm(x.to(at::kInt), {6}); }), "the input is Int"));
}

TEST(NormErrors, Norm04Float64DoesNotMix) {
  const Tensor x = torch::ones({4, 6}), w = torch::ones({6});
  const Tensor x64 = x.to(at::kDouble), w64 = w.to(at::kDouble);
  EXPECT_TRUE(contains(message_of([&] { norm::mixed_dtype_fused_rms_norm_affine(x64, w, {6}); }),
                       "the input is Double and weight is Float: float64 cannot be combined"));
  EXPECT_TRUE(contains(message_of([&] { norm::mixed_dtype_fused_layer_norm_affine(x, w64, w64, {6}); }),
                       "the input is Float and weight is Double: float64 cannot be combined"));
  EXPECT_TRUE(contains(message_of([&] { norm::mixed_dtype_fused_rms_norm_affine(x, w.to(at::kInt), {6}); }),
                       "weight is Int. Convert it to float16, bfloat16 or float32 first."));
  EXPECT_TRUE(norm::mixed_dtype_fused_rms_norm_affine(x64, w64, {6}).equal(norm::fused_rms_norm_affine(x64, w64, {6})));
}

TEST(NormErrors, UndefinedTensorsAndANegativeEps) {
  const Tensor x = torch::ones({4, 6}), w = torch::ones({6});
  EXPECT_TRUE(contains(message_of([&] { norm::fused_layer_norm({}, {6}); }), "the input is an undefined tensor"));
  EXPECT_TRUE(contains(message_of([&] { norm::fused_rms_norm_affine(x, {}, {6}); }), "weight is an undefined tensor"));
  EXPECT_TRUE(contains(message_of([&] { norm::fused_layer_norm_affine(x, w, {}, {6}); }), "bias is an undefined tensor"));
  EXPECT_TRUE(contains(message_of([&] { norm::fused_layer_norm_affine(x, {}, w, {6}); }), "weight is an undefined tensor"));
  const auto mixed_layer = [&](const Tensor& weight, const Tensor& bias) {
    return message_of([&] { norm::mixed_dtype_fused_layer_norm_affine(x, weight, bias, {6}); });
  };
  EXPECT_TRUE(contains(mixed_layer({}, w), "weight is an undefined tensor"));
  EXPECT_TRUE(contains(mixed_layer(w, {}), "bias is an undefined tensor"));
  const auto mixed_rms = [&](const Tensor& input, const Tensor& weight) {
    return message_of([&] { norm::mixed_dtype_fused_rms_norm_affine(input, weight, {6}); });
  };
  EXPECT_TRUE(contains(mixed_rms(x, {}), "weight is an undefined tensor"));
  EXPECT_TRUE(contains(mixed_rms({}, w), "the input is an undefined tensor"));
  EXPECT_THROW(norm::fused_rms_norm(x, {6}, -1e-5), c10::ValueError);
}

// The mean of eight squares of 1 is exact.
TEST(NormErrors, AnEpsOf0AndAnInputOfOneRowAreNone) {
  const Tensor x = torch::ones({4, 8});
  EXPECT_TRUE(norm::fused_rms_norm(x, {8}, 0.0).equal(x));
  EXPECT_TRUE(norm::fused_rms_norm(x, {4, 8}, 0.0).equal(x));
}

TEST(NormErrors, DevicesWithoutKernels) {
  const Tensor x = torch::ones({4, 6}, at::kMeta), w = torch::ones({6});
  EXPECT_THROW(norm::fused_layer_norm(x, {6}), c10::NotImplementedError);
  EXPECT_TRUE(contains(message_of([&] { norm::fused_rms_norm(x, {6}); }), "on meta. Use torch::nn::LayerNorm there"));
  EXPECT_TRUE(contains(message_of([&] { norm::fused_layer_norm_affine(x, w, w, {6}); }), "weight is on cpu"));
}

TEST(NormErrors, ASecondDerivativeIsAnError) {
  const Tensor x = torch::randn({4, 6}).requires_grad_();
  const Tensor y = norm::fused_rms_norm(x, {6});
  const Tensor grad = torch::autograd::grad({y.square().sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  EXPECT_THROW(grad.sum().backward(), c10::NotImplementedError);
}

TEST(NormErrors, Norm04MixedModulesAreAlwaysAffine) {
  const auto options = [] { return norm::MixedFusedLayerNormOptions({6}); };
  EXPECT_THROW(norm::MixedFusedLayerNorm(options().elementwise_affine(false)), c10::Error);
  EXPECT_THROW(norm::MixedFusedRMSNorm(options().elementwise_affine(false)), c10::Error);
  apex::test::CaughtWarnings warnings;
  norm::MixedFusedLayerNorm silent(options());
  EXPECT_EQ(warnings.text, "");
  norm::MixedFusedLayerNorm warned(options().elementwise_affine(true));
  EXPECT_TRUE(contains(warnings.text, "elementwise_affine"));
  EXPECT_TRUE(warned->weight.defined());
}

}  // namespace
}  // namespace normalization_test
