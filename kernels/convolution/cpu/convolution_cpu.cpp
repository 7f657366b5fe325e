#include "kernels/convolution/cpu/convolution_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "kernels/convolution/convolution.h"
#include "kernels/cpu/isa.h"

#ifdef APEX_CPP_X86_KERNELS
#include <cpuid.h>
#endif

namespace apex::kernels {
namespace {

#ifdef APEX_CPP_X86_KERNELS
// Older compilers have no `__builtin_cpu_supports` name for AMX-BF16, so CPUID is read directly.
bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & 1u << 22) != 0;
}
#else
bool has_amx_bf16() { return false; }
#endif

}  // namespace

bool has_convolutions() { return kernels::cpu::is_available(kernels::cpu::Isa::avx512_bf16); }

bool has_fast_convolutions() {
  static const bool has = has_convolutions() && !has_amx_bf16();
  return has;
}

}  // namespace apex::kernels

namespace apex::kernels::convolution::cpu {
namespace {

struct Products {
  const PairProducts& pairs;
  const PixelProducts& pixels;
};

Products products() {
#ifdef APEX_CPP_X86_KERNELS
  return {kAvx512Bf16Products, kAvx512Bf16PixelProducts};
#else
  TORCH_INTERNAL_ASSERT(
      false,
      "convolution: this build has no kernels for this processor. Check has_convolutions first, and use LibTorch's kernels.");
#endif
}

at::Tensor in_float32(const at::Tensor& bias, int64_t channels) {
  return bias.defined() ? bias.to(at::kFloat).contiguous() : at::zeros({channels}, at::kFloat);
}

// Splits the pairs of images into groups that are summed independently, without synchronization, and then added up. The number
// of groups depends on the shapes alone. It is a power of two, because thread counts and batch sizes often are, and small
// enough that the final addition is cheap beside the products.
std::vector<Span> groups_of_pairs(int64_t images, int64_t pixels, int64_t weights) {
  constexpr int64_t kMost = 16, kWeightsOfAll = 512 * 1024, kPixelsOfGroup = 1024;
  const int64_t pairs = ceil_div(images, 2);
  const int64_t most = std::min({kMost, pairs, kWeightsOfAll / weights, pairs * pixels / kPixelsOfGroup});
  int64_t groups = 1;
  while (2 * groups <= most) groups *= 2;
  std::vector<Span> spans;
  for (int64_t i = 0; i < groups; ++i) spans.push_back({i * pairs / groups, (i + 1) * pairs / groups});
  return spans;
}

at::Tensor empty_image(const at::Tensor& like, int64_t channels, int64_t height, int64_t width) {
  return at::empty({like.size(0), channels, height, width}, like.options(), kLayout);
}

}  // namespace

at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const Axis& height,
                   const Axis& width) {
  const at::Tensor output = empty_image(input, weight.size(0), height.output, width.output);
  sum_pixels(products().pixels, input, PackedWeight::of_outputs(products().pixels, weight), in_float32(bias, weight.size(0)),
             {output_passes(height), output_passes(width)}, output);
  return output;
}

at::Tensor input_grad(const at::Tensor& grad_output, const at::Tensor& weight, const Axis& height, const Axis& width) {
  const at::Tensor grad = empty_image(grad_output, weight.size(1), height.input, width.input);
  sum_pixels(products().pixels, grad_output, PackedWeight::of_inputs(products().pairs, weight),
             in_float32(at::Tensor(), weight.size(1)), {input_grad_passes(height), input_grad_passes(width)}, grad);
  return grad;
}

ConvolutionGrads weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const Axis& height, const Axis& width,
                             bool with_bias) {
  const int64_t weights = grad_output.size(1) * input.size(1) * height.kernel * width.kernel;
  std::vector<WeightSums> groups;
  for (const Span& pairs : groups_of_pairs(input.size(0), height.output * width.output, weights)) {
    groups.emplace_back(products().pairs, grad_output, input, height, width, pairs, with_bias);
  }
  const auto count = static_cast<int64_t>(groups.size());
  // If the groups do not divide evenly among the threads, they run one after another and each parallelizes its own loops.
  const bool has_as_much_for_each_thread = count % at::get_num_threads() == 0 && ceil_div(input.size(0), 2) % count == 0;
  at::parallel_for(0, count, has_as_much_for_each_thread ? 1 : count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) groups[static_cast<size_t>(i)].sum();
  });
  WeightSums::add_up(groups);
  return {groups.front().weight_grad(), with_bias ? groups.front().bias_grad() : at::Tensor()};
}

}  // namespace apex::kernels::convolution::cpu
