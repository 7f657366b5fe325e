#include "kernels/convolution/cpu/driver.h"

#include <c10/util/Exception.h>

#include "kernels/convolution/cpu/weight_sums.h"

namespace apex::kernels::convolution::cpu {
namespace {

const PairProducts* products() {
#ifdef APEX_CPP_X86_KERNELS
  // The compiler's check covers the operating system, which has to save the wide registers.
  const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bf16");
  return runs ? &kAvx512Bf16Products : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace

bool is_available() { return products() != nullptr; }

ConvolutionGrads weight_grad(const at::Tensor& grad_output, const at::Tensor& input, const Axis& height, const Axis& width,
                             bool with_bias) {
  WeightSums sums(*products(), grad_output, input, height, width, with_bias);
  sums.sum();
  return {sums.weight_grad(), with_bias ? sums.bias_grad() : at::Tensor()};
}

}  // namespace apex::kernels::convolution::cpu
