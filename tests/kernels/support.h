#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/multi_tensor.h"
#include "tests/errors.h"

namespace kernels_test {

using apex::test::expect_error;
using Tensors = std::vector<at::Tensor>;

// Sizes next to the boundaries of vectors, cache pages, blocks and chunks.
const std::vector<int64_t>& boundary_sizes();

const std::vector<at::ScalarType>& dtypes();

// A flat tensor of normally distributed values times `spread`, `offset` elements after the start of an allocation.
at::Tensor random_values(int64_t size, at::ScalarType dtype, int64_t offset = 0, double spread = 1.0);

// One such tensor for each boundary size.
Tensors random_list(at::ScalarType dtype, int64_t offset = 0);

// Tensors of the same sizes, filled with 7, `offset` elements after the start of an allocation.
Tensors outputs_for(const Tensors& inputs, at::ScalarType dtype, int64_t offset = 0);

at::Tensor clear_flag();

// True for equal sizes, dtypes and bits; any NaN equals any NaN.
::testing::AssertionResult same_bits(const at::Tensor& actual, const at::Tensor& expected);
::testing::AssertionResult same_bits(const Tensors& actual, const Tensors& expected);

// True for equal memory, byte for byte.
::testing::AssertionResult same_bytes(const Tensors& actual, const Tensors& expected);

// Copies with the tensors' offsets from a multiple of 64 bytes.
Tensors copies_of(const Tensors& tensors);

// What kernels store for values: float64 becomes 16 bits by way of float32, as PyTorch does it on x86 and on GPUs. On ARM,
// PyTorch rounds float64 to float16 once.
at::Tensor stored_as(const at::Tensor& values, at::ScalarType dtype);

// The expected results, computed with float64 ATen operators and single roundings. A product of two float32 values is exact in
// float64, and rounding a float64 sum of two float32 values to float32 gives the correctly rounded sum (53 >= 2 * 24 + 2). So
// these are the bits of unfused float32 arithmetic.
at::Tensor expected_scale(const at::Tensor& in, double factor, at::ScalarType out_dtype);
at::Tensor expected_axpby(const at::Tensor& x, const at::Tensor& y, double a, double b, at::ScalarType out_dtype);

// The loss scale and both of its counters, on the CPU, after each of eight updates on the device, some of them with an
// overflow.
Tensors updated_loss_scales(c10::Device device);

// Names for parametrized tests, made of the parameter's dtypes.
std::string name_of(at::ScalarType dtype);
template <class... Dtypes>
std::string name_of(const std::tuple<Dtypes...>& mix) {
  return std::apply([](auto... dtype) { return (std::string() + ... + name_of(dtype)); }, mix);
}
template <class Param>
std::string param_name(const ::testing::TestParamInfo<Param>& info) {
  return name_of(info.param);
}

// Sets the number of intra-op threads while it lives.
class Threads {
 public:
  explicit Threads(int count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

// Sets the CPU driver's instruction set while it lives.
class UseIsa {
 public:
  explicit UseIsa(apex::kernels::cpu::Isa isa) { apex::kernels::cpu::set_current_isa(isa); }
  ~UseIsa() { apex::kernels::cpu::set_current_isa(before_); }
  UseIsa(const UseIsa&) = delete;
  UseIsa& operator=(const UseIsa&) = delete;

 private:
  apex::kernels::cpu::Isa before_ = apex::kernels::cpu::current_isa();
};

// The instruction sets of this machine.
const std::vector<apex::kernels::cpu::Isa>& available_isas();

// Calls compute() with every instruction set and with 1, 2 and 4 threads, and expects tensors with the same bits every time.
// NaN payloads are compared only with `nan_payloads`.
template <class Compute>
void expect_same_everywhere(const Compute& compute, bool nan_payloads = false) {
  const Tensors expected = [&] {
    const UseIsa isa(apex::kernels::cpu::Isa::portable);
    const Threads threads(1);
    return compute();
  }();
  for (const auto isa : available_isas()) {
    for (const int count : {1, 2, 4}) {
      SCOPED_TRACE(std::string(apex::kernels::cpu::name_of(isa)) + ", threads: " + std::to_string(count));
      const UseIsa use(isa);
      const Threads threads(count);
      const Tensors actual = compute();
      EXPECT_TRUE(nan_payloads ? same_bytes(actual, expected) : same_bits(actual, expected));
    }
  }
}

}  // namespace kernels_test
