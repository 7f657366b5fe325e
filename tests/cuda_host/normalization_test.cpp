// Layer and RMS normalization: the bits of the CPU driver.
#include <ATen/ATen.h>

#include <sstream>

#include "kernels/normalization/cuda/normalization_cuda.h"
#include "kernels/normalization/normalization.h"
#include "tests/cuda_host/support.h"
#include "tests/kernels/support.h"

namespace cuda_host_test {
namespace {

namespace kernels = apex::kernels;
namespace norm = apex::kernels::normalization;
using kernels::NormKind;
using kernels_test::name_of;
using kernels_test::same_bits;

struct NormMix {
  NormKind kind;
  at::ScalarType input, weight;
  bool has_affine;
};

std::vector<NormMix> norm_mixes() {
  std::vector<NormMix> all;
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (const auto input : {at::kFloat, at::kHalf, at::kBFloat16}) {
      for (const auto weight : {at::kFloat, at::kHalf, at::kBFloat16}) all.push_back({kind, input, weight, true});
      all.push_back({kind, input, input, false});
    }
    all.push_back({kind, at::kDouble, at::kDouble, true});
  }
  return all;
}

struct NormCase {
  NormMix mix;
  kernels::NormShape shape;
  at::Tensor input, grad_output, weight, bias;
  bool saves_output = false;  // memory_efficient
};

// Tensors `offset` elements behind an aligned address.
NormCase norm_case(const NormMix& mix, int64_t rows, int64_t size, int64_t offset) {
  const auto random = [&](std::vector<int64_t> sizes, at::ScalarType dtype) {
    return kernels_test::random_values(c10::multiply_integers(sizes), dtype, offset).view(sizes);
  };
  NormCase c{mix, {rows, size}, random({rows, size}, mix.input), random({rows, size}, mix.weight), {}, {}, offset == 1};
  if (!mix.has_affine) return c;
  // Away from 0, so that the output determines the normalized values.
  c.weight = random({size}, mix.weight).abs_().add_(0.5);
  if (mix.kind == NormKind::layer) c.bias = random({size}, mix.weight);
  return c;
}

using Forward = void (*)(const norm::ForwardCall&);
using Backward = void (*)(const norm::BackwardCall&);

// Forward and backward by a driver, with outputs like those that norm_forward and norm_backward make.
Tensors run(const NormCase& c, c10::Device device, Forward forward, Backward backward) {
  const auto there = [&](const at::Tensor& tensor) { return tensor.defined() ? on(device, {tensor})[0] : tensor; };
  const at::Tensor input = there(c.input), grad_output = there(c.grad_output);
  const kernels::NormAffine affine{there(c.weight), there(c.bias)};
  const auto statistics = at::TensorOptions().device(device).dtype(c.mix.input == at::kDouble ? at::kDouble : at::kFloat);
  const kernels::NormForward out{at::empty_like(input, c.mix.weight),
                                 c.mix.kind == NormKind::layer ? at::empty({c.shape.rows}, statistics) : at::Tensor(),
                                 at::empty({c.shape.rows}, statistics)};
  constexpr double kEps = 1e-5;
  forward({c.mix.kind, c.shape, input, affine, kEps, out});
  const kernels::NormSaved saved{c.saves_output ? out.output : input, c.saves_output ? at::Tensor() : out.mean, out.inv_std,
                                 c.saves_output, kEps};
  const auto like = [](const at::Tensor& tensor) { return tensor.defined() ? at::empty_like(tensor) : tensor; };
  const kernels::NormGrads grads{like(input), like(affine.weight), like(affine.bias)};
  backward({c.mix.kind, c.shape, grad_output, saved, affine, grads});
  Tensors results;
  for (const at::Tensor& tensor : {out.output, out.mean, out.inv_std, grads.input, grads.weight, grads.bias}) {
    if (tensor.defined()) results.push_back(tensor.cpu());
  }
  return results;
}

Tensors on_the_cpu(const NormCase& c) {
  const auto forward = [](const norm::ForwardCall& call) {
    const kernels::NormForward out = kernels::norm_forward(call.kind, call.shape, call.input, call.affine, call.eps);
    call.out.output.copy_(out.output);
    if (call.out.mean.defined()) call.out.mean.copy_(out.mean);
    call.out.inv_std.copy_(out.inv_std);
  };
  const auto backward = [](const norm::BackwardCall& call) {
    const kernels::NormGrads out = kernels::norm_backward(call.kind, call.shape, call.grad_output, call.saved, call.affine,
                                                          call.out.input.scalar_type(), {true, true, true});
    call.out.input.copy_(out.input);
    if (call.out.weight.defined()) call.out.weight.copy_(out.weight);
    if (call.out.bias.defined()) call.out.bias.copy_(out.bias);
  };
  return run(c, at::kCPU, forward, backward);
}

void expect_the_bits_of_the_cpu(const NormCase& c) {
  SCOPED_TRACE(::testing::Message() << c.shape.rows << " x " << c.shape.size);
  EXPECT_TRUE(same_bits(run(c, kDevice, norm::cuda::forward, norm::cuda::backward), on_the_cpu(c)));
}

class HostNormalization : public OnFakeDeviceWith<NormMix> {};

// Sizes next to the boundaries of quads, warps, segments, and of what a block holds in registers.
TEST_P(HostNormalization, HasTheBitsOfTheCpu) {
  const std::vector<int64_t> large = {1, 2, 7, 8, 127, 128, 129, 1000, 1024, 1025, 8192, 8193}, small = {8, 129, 1025};
  for (const int64_t size : is_small() ? small : large) {
    for (const int64_t offset : {0, 1}) expect_the_bits_of_the_cpu(norm_case(GetParam(), 3, size, offset));
  }
}

// More rows than the blocks of a launch: further rows in a second round, which must wait for the first.
TEST_P(HostNormalization, OfMoreRowsThanBlocksHasTheBitsOfTheCpu) {
  const int64_t warps_in_launch = 7 * 8;
  expect_the_bits_of_the_cpu(norm_case(GetParam(), is_small() ? 60 : 2 * warps_in_launch + 5, 36, 0));
  expect_the_bits_of_the_cpu(norm_case(GetParam(), is_small() ? 8 : 17, 1028, 0));
}

INSTANTIATE_TEST_SUITE_P(Mixes, HostNormalization, ::testing::ValuesIn(norm_mixes()), [](const auto& test) {
  const NormMix& mix = test.param;
  return (mix.kind == NormKind::layer ? "Layer" : "Rms") + name_of(mix.input) + name_of(mix.weight) +
         (mix.has_affine ? "" : "Plain");
});

class HostNormalizationSums : public OnFakeDevice {};

// 18 blocks of rows, more than there are lanes. A block has 32768 elements or more, so few mixes have to do.
TEST_F(HostNormalizationSums, OfManyRowsHaveTheBitsOfTheCpu) {
  if (is_small()) GTEST_SKIP() << "takes too long under a sanitizer";
  expect_the_bits_of_the_cpu(norm_case({NormKind::layer, at::kHalf, at::kFloat, true}, 300, 2051, 0));
  expect_the_bits_of_the_cpu(norm_case({NormKind::rms, at::kDouble, at::kDouble, true}, 300, 2051, 1));
}

}  // namespace
}  // namespace cuda_host_test
