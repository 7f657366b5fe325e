#include "tests/kernels/support.h"

#include <ATen/Parallel.h>

#include <cstring>

#include "kernels/optimizers.h"

namespace kernels_test {

const std::vector<int64_t>& boundary_sizes() {
  static const std::vector<int64_t> kSizes = {0,    1,   7,   8,   15,   16,   17,   31,    32,    33,    1023,         1024,
                                              1025, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, 2 * 65536 + 1};
  return kSizes;
}

const std::vector<at::ScalarType>& dtypes() {
  static const std::vector<at::ScalarType> kDtypes = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
  return kDtypes;
}

at::Tensor random_values(int64_t size, at::ScalarType dtype, int64_t offset, double spread) {
  return at::randn({size + offset}, at::kDouble).mul_(spread).to(dtype).narrow(0, offset, size);
}

Tensors random_list(at::ScalarType dtype, int64_t offset) {
  Tensors list;
  for (const int64_t size : boundary_sizes()) list.push_back(random_values(size, dtype, offset));
  return list;
}

Tensors outputs_for(const Tensors& inputs, at::ScalarType dtype, int64_t offset) {
  Tensors outputs;
  for (const at::Tensor& input : inputs) {
    outputs.push_back(at::full({input.numel() + offset}, 7, dtype).narrow(0, offset, input.numel()));
  }
  return outputs;
}

std::string name_of(at::ScalarType dtype) { return c10::toString(dtype); }

at::Tensor clear_flag() { return at::zeros({1}, at::kInt); }

::testing::AssertionResult same_bits(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.scalar_type() != expected.scalar_type() || actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure() << actual.scalar_type() << " of sizes " << actual.sizes() << " is not "
                                         << expected.scalar_type() << " of sizes " << expected.sizes();
  }
  const at::Tensor both_nan = actual.isnan().logical_and(expected.isnan());
  const at::Tensor same = actual.eq(expected).logical_and(actual.signbit().eq(expected.signbit())).logical_or(both_nan);
  if (same.all().item<bool>()) return ::testing::AssertionSuccess();
  const at::Tensor wrong = same.logical_not().flatten().nonzero().flatten();
  const auto first = wrong[0].item<int64_t>();
  return ::testing::AssertionFailure() << wrong.numel() << " of " << actual.numel() << " elements differ, first at " << first
                                       << ": " << actual.flatten()[first].item<double>() << " is not "
                                       << expected.flatten()[first].item<double>();
}

::testing::AssertionResult same_bits(const Tensors& actual, const Tensors& expected) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " tensors, not " << expected.size();
  for (size_t i = 0; i < actual.size(); ++i) {
    auto result = same_bits(actual[i], expected[i]);
    if (!result) return result << " (tensor " << i << ")";
  }
  return ::testing::AssertionSuccess();
}

namespace {

bool equal_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.nbytes() != b.nbytes()) return false;
  return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace

::testing::AssertionResult same_bytes(const Tensors& actual, const Tensors& expected) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " tensors, not " << expected.size();
  for (size_t i = 0; i < actual.size(); ++i) {
    if (equal_bytes(actual[i], expected[i])) continue;
    return ::testing::AssertionFailure() << "tensor " << i << " of " << actual[i].numel() << " elements has other bytes";
  }
  return ::testing::AssertionSuccess();
}

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) {
    const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64 / tensor.element_size());
    copies.push_back(at::empty({tensor.numel() + offset}, tensor.options()).narrow(0, offset, tensor.numel()).copy_(tensor));
  }
  return copies;
}

const std::vector<apex::kernels::cpu::Isa>& available_isas() {
  using apex::kernels::cpu::Isa;
  static const std::vector<Isa> kAvailable = [] {
    std::vector<Isa> isas;
    for (const Isa isa : apex::kernels::cpu::kEveryIsa) {
      if (apex::kernels::cpu::is_available(isa)) isas.push_back(isa);
    }
    return isas;
  }();
  return kAvailable;
}

namespace {

at::ScalarType math_of(std::initializer_list<at::ScalarType> dtypes) {
  for (const at::ScalarType dtype : dtypes) {
    if (dtype == at::kDouble) return at::kDouble;
  }
  return at::kFloat;
}

// A product rounded to dtype `math`.
at::Tensor rounded_product(const at::Tensor& values, double factor, at::ScalarType math) {
  const double rounded_factor = math == at::kFloat ? static_cast<double>(static_cast<float>(factor)) : factor;
  return values.to(at::kDouble).mul(rounded_factor).to(math);
}

}  // namespace

at::Tensor stored_as(const at::Tensor& values, at::ScalarType dtype) {
  return (c10::elementSize(dtype) == 2 ? values.to(at::kFloat) : values).to(dtype);
}

at::Tensor expected_scale(const at::Tensor& in, double factor, at::ScalarType out_dtype) {
  return stored_as(rounded_product(in, factor, math_of({in.scalar_type(), out_dtype})), out_dtype);
}

at::Tensor expected_axpby(const at::Tensor& x, const at::Tensor& y, double a, double b, at::ScalarType out_dtype) {
  const at::ScalarType math = math_of({x.scalar_type(), y.scalar_type(), out_dtype});
  const at::Tensor ax = rounded_product(x, a, math);
  const at::Tensor by = rounded_product(y, b, math);
  return stored_as(ax.to(at::kDouble).add(by.to(at::kDouble)).to(math), out_dtype);
}

Tensors updated_loss_scales(c10::Device device) {
  apex::kernels::ScaleUpdate rule;
  rule.growth_interval = 2;
  rule.hysteresis = 2;
  const auto ints = at::TensorOptions().dtype(at::kInt).device(device);
  const apex::kernels::LossScaleTensors tensors = {at::full({1}, 8.0f, ints.dtype(at::kFloat)), at::zeros({1}, ints),
                                                   at::full({1}, 2, ints)};
  Tensors states;
  for (const int overflow : {0, 0, 1, 1, 1, 0, 0, 0}) {
    apex::kernels::update_scale_hysteresis(tensors, at::full({1}, overflow, ints), rule);
    for (const at::Tensor& tensor : {tensors.scale, tensors.growth_tracker, tensors.hysteresis_tracker}) {
      states.push_back(tensor.cpu().clone());
    }
  }
  return states;
}

Threads::Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
Threads::~Threads() { at::set_num_threads(before_); }

}  // namespace kernels_test
