#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/convolution/cpu/pixel_products.h"

namespace apex::kernels::convolution::cpu {

// A channels-last weight's values in pairs of the channels that sums go over: [block of results][tap][chunk of terms][kLanes]
// [kBlock]. Both numbers of channels are multiples of kBlock and of kChunk.
class PackedWeight {
 public:
  // For results in output channels, sums over input channels.
  static PackedWeight of_outputs(const PixelProducts& products, const at::Tensor& weight);
  // For results in input channels, sums over output channels.
  static PackedWeight of_inputs(const PairProducts& products, const at::Tensor& weight);

  int64_t blocks() const { return blocks_; }
  int64_t chunks() const { return chunks_; }
  int64_t taps() const { return height_ * width_; }
  const Pair* block(int64_t i) const { return memory_.const_data_ptr<Pair>() + i * offset(height_, 0, 0); }
  // Where in a block the pairs lie that this tap and chunk have.
  int64_t offset(int64_t down, int64_t across, int64_t chunk) const {
    return ((down * width_ + across) * chunks_ + chunk) * kLanes * kBlock;
  }

 private:
  PackedWeight(const at::Tensor& weight, int64_t results, int64_t terms);
  // pack_lanes(values of the first channel of results and of terms, where its pairs go), for each kLanes channels of results.
  // The steps are between neighbouring channels of the weight.
  template <class PackLanes>
  void pack(const at::Tensor& weight, int64_t result_step, int64_t term_step, const PackLanes& pack_lanes);

  int64_t blocks_, height_, width_, chunks_;
  at::Tensor memory_;
};

}  // namespace apex::kernels::convolution::cpu
