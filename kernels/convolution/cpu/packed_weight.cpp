#include "kernels/convolution/cpu/packed_weight.h"

#include <ATen/ops/empty.h>

#include "kernels/convolution/cpu/in_parallel.h"
#include "kernels/elements.h"

namespace apex::kernels::convolution::cpu {
namespace {

constexpr int64_t kWeightsInTask = 32 * 1024;  // that are worth a thread

int64_t output_step_of(const at::Tensor& weight) { return weight.size(1) * weight.size(2) * weight.size(3); }

}  // namespace

PackedWeight::PackedWeight(const at::Tensor& weight, int64_t results, int64_t terms)
    : blocks_(results / kBlock),
      height_(weight.size(2)),
      width_(weight.size(3)),
      chunks_(terms / kChunk),
      memory_(at::empty({weight.numel() / 2}, weight.options().dtype(at::kUInt32))) {}

template <class PackLanes>
void PackedWeight::pack(const at::Tensor& weight, int64_t result_step, int64_t term_step, const PackLanes& pack_lanes) {
  const BFloat16Bits* const values = elements(weight);
  Pair* const pairs = memory_.mutable_data_ptr<Pair>();
  in_parallel(blocks_ * taps() * chunks_, kBlock * kChunk, kWeightsInTask, [&](int64_t i) {
    const int64_t block = i / chunks_ / taps(), tap = i / chunks_ % taps(), chunk = i % chunks_;
    const BFloat16Bits* const from = values + block * kBlock * result_step + tap * weight.size(1) + chunk * kChunk * term_step;
    Pair* const to = pairs + i * kLanes * kBlock;
    for (int64_t lane = 0; lane < kBlock; lane += kLanes) pack_lanes(from + lane * result_step, to + lane);
  });
}

PackedWeight PackedWeight::of_outputs(const PixelProducts& products, const at::Tensor& weight) {
  PackedWeight packed(weight, weight.size(0), weight.size(1));
  const int64_t output_step = output_step_of(weight);
  packed.pack(weight, output_step, 1,
              [&](const BFloat16Bits* from, Pair* to) { products.transpose(from, output_step, to, kBlock); });
  return packed;
}

PackedWeight PackedWeight::of_inputs(const PairProducts& products, const at::Tensor& weight) {
  PackedWeight packed(weight, weight.size(1), weight.size(0));
  const int64_t output_step = output_step_of(weight);
  packed.pack(weight, 1, output_step, [&](const BFloat16Bits* from, Pair* to) {
    products.interleave(from, from + output_step, 2 * output_step, kLanes, kLanes, to, kBlock);
  });
  return packed;
}

}  // namespace apex::kernels::convolution::cpu
