// amp::statistics, compared with torch's operators for the same figures and with the memory bound of one pass.
#include <apex_cpp/amp/statistics.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "../kernels/compare.h"
#include "../suites.h"

namespace bench {
namespace statistics {
namespace {

using kernels::Access;
using kernels::Tensors;

struct Type {
  const char* name;
  at::ScalarType dtype;
};

constexpr Type kTypes[] = {{"statistics f32", at::kFloat}, {"statistics f16", at::kHalf}, {"statistics bf16", at::kBFloat16}};

// The figures of one tensor, except its exponents, one operator each.
void by_operators(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor figures[] = {tensor.abs().amax(),     tensor.mean(),
                                  tensor.norm(),           tensor.numel() - at::count_nonzero(tensor),
                                  at::isinf(tensor).sum(), at::isnan(tensor).sum()};
    for (const at::Tensor& figure : figures) figure.item();
  }
}

kernels::Comparison comparison(const Tensors& tensors) {
  return {{{"apex_cpp", [tensors] { apex::amp::statistics(tensors); }}, {"torch", [tensors] { by_operators(tensors); }}},
          {{{tensors, Access::read}}}};
}

}  // namespace
}  // namespace statistics

void run_statistics(Runner& runner) {
  const at::NoGradGuard no_grad;
  for (const auto& type : statistics::kTypes) {
    for (const auto& shapes : kernels::cases()) {
      if (!runner.wants(type.name, shapes.name)) continue;
      const auto tensors = kernels::random(shapes, type.dtype, runner.device());
      kernels::compare(runner, type.name, shapes.name, statistics::comparison(tensors));
    }
    runner.print_group();
  }
}

}  // namespace bench
