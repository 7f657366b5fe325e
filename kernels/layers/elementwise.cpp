#include <ATen/Parallel.h>

#include "kernels/cpu/isa.h"
#include "kernels/elements.h"
#include "kernels/layers/cpu/layer_kernels.h"
#include "kernels/layers/layers.h"

namespace apex::kernels {
namespace {

constexpr int64_t kElementsWorthAThread = 32768;

uint16_t infinity_of(c10::ScalarType type) { return type == at::kHalf ? 0x7c00 : 0x7f80; }

}  // namespace

namespace layers {

const LayerKernels& current_layers() {
  return cpu::of_current_isa<kPortableLayers, kAvx2Layers, kAvx512Layers, kAvx512Bf16Layers>();
}

}  // namespace layers

void relu(const at::Tensor& x, const at::Tensor& y) {
  const uint16_t* const from = elements(x);
  uint16_t* const to = written_elements(y);
  const auto infinity = infinity_of(x.scalar_type());
  at::parallel_for(0, x.numel(), kElementsWorthAThread, [&](int64_t begin, int64_t end) {
    layers::current_layers().relu(from + begin, to + begin, end - begin, infinity);
  });
}

void relu_backward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& grad_x) {
  const uint16_t* const grad = elements(grad_y);
  const uint16_t* const input = elements(x);
  uint16_t* const to = written_elements(grad_x);
  const auto infinity = infinity_of(x.scalar_type());
  at::parallel_for(0, x.numel(), kElementsWorthAThread, [&](int64_t begin, int64_t end) {
    layers::current_layers().relu_backward(grad + begin, input + begin, to + begin, end - begin, infinity);
  });
}

void add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sum) {
  const uint16_t* const first = elements(a);
  const uint16_t* const second = elements(b);
  uint16_t* const to = written_elements(sum);
  at::parallel_for(0, a.numel(), kElementsWorthAThread, [&](int64_t begin, int64_t end) {
    layers::current_layers().add(first + begin, second + begin, to + begin, end - begin);
  });
}

}  // namespace apex::kernels
