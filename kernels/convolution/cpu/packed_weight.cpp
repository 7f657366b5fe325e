#include "kernels/convolution/cpu/packed_weight.h"

#include <ATen/ops/empty.h>

#include "kernels/convolution/cpu/in_parallel.h"

namespace apex::kernels::convolution::cpu {
namespace {

constexpr int64_t kWeightsInTask = 32 * 1024;  // that are worth a thread

const BFloat16Bits* weights_of(const at::Tensor& weight) { return static_cast<const BFloat16Bits*>(weight.const_data_ptr()); }

}  // namespace

PackedWeight::PackedWeight(const at::Tensor& weight, int64_t results, int64_t terms)
    : blocks_(results / kBlock),
      height_(weight.size(2)),
      width_(weight.size(3)),
      chunks_(terms / kChunk),
      memory_(at::empty({weight.numel() / 2}, weight.options().dtype(at::kUInt32))) {}

template <class Pack>
void PackedWeight::pack(const Pack& pack_pairs) {
  Pair* const to = memory_.mutable_data_ptr<Pair>();
  in_parallel(blocks_ * taps() * chunks_, kBlock * kChunk, kWeightsInTask, [&](int64_t i) {
    pack_pairs(i / chunks_ / taps(), i / chunks_ % taps(), i % chunks_, to + i * kLanes * kBlock);
  });
}

PackedWeight PackedWeight::of_outputs(const PixelProducts& products, const at::Tensor& weight) {
  PackedWeight packed(weight, weight.size(0), weight.size(1));
  const int64_t tap_step = weight.size(1), output_step = packed.taps() * tap_step;
  packed.pack([&](int64_t block, int64_t tap, int64_t chunk, Pair* to) {
    const BFloat16Bits* from = weights_of(weight) + block * kBlock * output_step + tap * tap_step + chunk * kChunk;
    for (int64_t half = 0; half < kBlock; half += kLanes) {
      products.transpose(from + half * output_step, output_step, to + half, kBlock);
    }
  });
  return packed;
}

PackedWeight PackedWeight::of_inputs(const PairProducts& products, const at::Tensor& weight) {
  PackedWeight packed(weight, weight.size(1), weight.size(0));
  const int64_t tap_step = weight.size(1), output_step = packed.taps() * tap_step;
  packed.pack([&](int64_t block, int64_t tap, int64_t chunk, Pair* to) {
    const BFloat16Bits* from = weights_of(weight) + chunk * kChunk * output_step + tap * tap_step + block * kBlock;
    for (int64_t half = 0; half < kBlock; half += kLanes) {
      products.interleave(from + half, from + half + output_step, 2 * output_step, kLanes, kLanes, to + half, kBlock);
    }
  });
  return packed;
}

}  // namespace apex::kernels::convolution::cpu
