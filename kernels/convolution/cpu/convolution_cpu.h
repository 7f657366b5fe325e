#pragma once

#include "kernels/convolution/axis_passes.h"
#include "kernels/convolution/convolution.h"
#include "kernels/convolution/cpu/packed.h"

#include <ATen/core/Tensor.h>

namespace apex::kernels::convolution::cpu {

// The convolution of channels-last bfloat16 tensors. `bias` may be undefined.
at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const Axis& height,
                   const Axis& width);
at::Tensor input_grad(const at::Tensor& grad_output, const at::Tensor& weight, const Axis& height, const Axis& width);
ConvolutionGrads weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const Axis& height, const Axis& width,
                             bool with_bias);

struct Passes {
  std::vector<Pass> height, width;
};

// Fills `result`, (N, blocks of channels, H', W'), with the sums over `operand`, (N, chunks of channels, H, W), that `passes`
// describes. Both are channels-last bfloat16. `bias` is FP32, one value per result channel.
void sum_pixels(const PixelProducts& products, const at::Tensor& operand, const PackedWeight& weight, const at::Tensor& bias,
                const Passes& passes, const at::Tensor& result);

// Accumulates the gradients of weight and bias in FP32 over some pairs of images of channels-last bfloat16 tensors. Layout of
// each block of output channels: [tap][input channel][kBlock], then one row for the bias.
class WeightSums {
 public:
  WeightSums(const PairProducts& products, const at::Tensor& grad_output, const at::Tensor& input, const Axis& height,
             const Axis& width, Span image_pairs, bool with_bias);

  void sum();
  // Adds the sums of all other elements to the first, in order.
  static void add_up(std::vector<WeightSums>& all);
  // The weight gradient, rounded to bfloat16.
  at::Tensor weight_grad() const;
  at::Tensor bias_grad() const;

 private:
  void sum_part(const Part& part, bool to_sums);
  void pack(Packed& operand, const Part& part) const;
  void multiply_taps(const Part& part, int64_t block, int64_t slice, int64_t tap_row, bool to_sums) const;
  void multiply_ones(const Part& part, int64_t block, bool to_sums) const;

  int64_t taps() const { return height_.kernel * width_.kernel; }
  int64_t blocks() const { return static_cast<int64_t>(outputs_.slices().size()); }
  int64_t lanes_of(int64_t block) const;
  float* sums_of(int64_t block, int64_t row) const;

  const PairProducts& products_;
  Axis height_, width_;
  int64_t input_channels_, output_channels_;
  Span image_pairs_;
  Packed inputs_, outputs_;
  bool with_bias_;
  at::Tensor sums_;
};

}  // namespace apex::kernels::convolution::cpu
