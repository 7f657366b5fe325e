// Kernels on CPU tensors of any sizes, dtypes, alignment and values: each instruction set, with one thread and with three, has
// the bits of the portable rule with one thread.
#include <cstdlib>
#include <iostream>

#include "tests/fuzz/bytes.h"
#include "tests/fuzz/target.h"
#include "tests/kernels/optimizer_cases.h"
#include "tests/kernels/support.h"

namespace apex::fuzz {
namespace {

using kernels_test::Tensors;
using Compute = std::function<Tensors()>;

constexpr size_t kMostTensors = 4;

int64_t size_of(Bytes& input) {
  const int64_t low = input.next(), high = input.below(20);
  if (high == 19) return 65'536 + low - 128;  // a chunk, and its neighbours
  return high * 256 + low;
}

std::vector<int64_t> sizes_of(Bytes& input) {
  std::vector<int64_t> sizes(input.below(kMostTensors + 1));
  for (auto& size : sizes) size = size_of(input);
  return sizes;
}

// Overwrites elements with values that rules and conversions treat apart, or with any bits.
void poke(Bytes& input, const at::Tensor& tensor) {
  static const std::vector<double> kValues = {INFINITY, -INFINITY, NAN,      0.0,       -0.0,   65504, 65520,
                                              1e-8,     0x1p-24,   0x1p-126, -0x1p-149, 3.4e38, 3e300, 1e-300};
  if (tensor.numel() == 0) return;
  for (size_t pokes = input.below(4); pokes > 0; --pokes) {
    const int64_t at = (256 * input.next() + input.next()) % tensor.numel();
    if (input.below(4) != 0) {
      tensor[at].copy_(at::scalar_tensor(input.one_of(kValues), at::kDouble));
      continue;
    }
    auto* bytes = static_cast<uint8_t*>(tensor[at].data_ptr());
    for (int64_t i = 0; i < tensor.element_size(); ++i) bytes[i] = input.next();
  }
}

Tensors list_of(Bytes& input, const std::vector<int64_t>& sizes) {
  Tensors list;
  const auto offset = static_cast<int64_t>(input.below(9));
  for (const int64_t size : sizes) {
    list.push_back(kernels_test::random_values(size, input.one_of(kernels_test::dtypes()), offset, 100));
    poke(input, list.back());
  }
  return list;
}

Tensors outputs_of(Bytes& input, const std::vector<int64_t>& sizes) {
  Tensors list = list_of(input, sizes);
  for (const at::Tensor& output : list) output.fill_(7);
  return list;
}

Compute elementwise(Bytes& input) {
  const size_t operation = input.below(6);
  const auto sizes = sizes_of(input);
  const Tensors x = list_of(input, sizes), y = list_of(input, sizes), out = outputs_of(input, sizes);
  const double a = 1.0 / (1 + input.next()), b = input.next() - 128.0;
  const bool each = input.below(2) == 1;
  return [=] {
    const at::Tensor flag = kernels_test::clear_flag();
    const at::Tensor factor = at::full({1}, a, at::kFloat);
    Tensors results = kernels_test::copies_of(out);
    const auto with_norms = [&](const std::tuple<at::Tensor, at::Tensor>& norms) {
      results = {std::get<0>(norms), std::get<1>(norms)};
    };
    switch (operation) {
      case 0:
        kernels::multi_tensor_scale(flag, x, results, a);
        break;
      case 1:
        kernels::multi_tensor_axpby(flag, x, y, results, a, b, each ? kernels::CheckArg::both : kernels::CheckArg::x);
        break;
      case 2:
        kernels::multi_tensor_copy(x, results);
        break;
      case 3:
        with_norms(kernels::multi_tensor_l2norm(flag, x, each));
        break;
      case 4:
        with_norms(kernels::multi_tensor_unscale_l2norm(flag, x, factor, each));
        break;
      default:
        with_norms(kernels::multi_tensor_maxnorm(flag, x, each));
    }
    results.push_back(flag);
    return results;
  };
}

Compute update(Bytes& input) {
  const auto& one = input.one_of(kernels_test::cases());
  const auto& storage = input.one_of(kernels_test::storages());
  auto sizes = sizes_of(input);
  auto problem = kernels_test::make_problem(one, storage, sizes, static_cast<int64_t>(input.below(9)));
  for (const at::Tensor& grad : problem.grads) poke(input, grad);
  for (const at::Tensor& param : problem.params) poke(input, param);
  const int overflow = input.below(8) == 0;
  return [=] {
    auto copy = problem.copy();
    one.step(copy, at::full({1}, overflow, at::kInt));
    return copy.all();
  };
}

Tensors result(const Compute& compute, kernels::cpu::Isa isa, int threads) {
  const kernels_test::UseIsa use(isa);
  const kernels_test::Threads count(threads);
  return compute();
}

}  // namespace
}  // namespace apex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace apex::fuzz;
  Bytes input(data, bytes);
  at::manual_seed(input.next());
  const Compute compute = input.below(2) == 0 ? elementwise(input) : update(input);
  const Tensors expected = result(compute, apex::kernels::cpu::Isa::portable, 1);
  for (const auto isa : kernels_test::available_isas()) {
    for (const int threads : {1, 3}) {
      const auto same = kernels_test::same_bits(result(compute, isa, threads), expected);
      if (same) continue;
      std::cerr << apex::kernels::cpu::name_of(isa) << ", threads: " << threads << ": " << same.message() << "\n";
      std::abort();
    }
  }
  return 0;
}
