// Two custom operators, defined as in any library for LibTorch. They know nothing of amp.
#include "snake.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One loop over memory, for float32 only.
at::Tensor snake_cpu(const at::Tensor& x, const at::Tensor& alpha) {
  TORCH_CHECK_VALUE(x.dim() == 2 && alpha.dim() == 1 && x.size(1) == alpha.size(0), "custom::snake: x is ", x.sizes(),
                    " and alpha ", alpha.sizes(), "; they must be (count, channels) and (channels).");
  TORCH_CHECK_TYPE(x.scalar_type() == at::kFloat && alpha.scalar_type() == at::kFloat, "custom::snake: x is ", x.scalar_type(),
                   " and alpha ", alpha.scalar_type(), "; both must be Float.");
  const auto in = x.contiguous(), frequencies = alpha.contiguous();
  auto out = at::empty_like(in);
  const auto* from = in.const_data_ptr<float>();
  const auto* frequency = frequencies.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  const auto channels = in.size(1);
  for (int64_t i = 0; i < in.numel(); ++i) {
    const float a = frequency[i % channels];
    const float s = std::sin(a * from[i]);
    to[i] = from[i] + s * s / a;
  }
  return out;
}

struct Snake : torch::autograd::Function<Snake> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& alpha) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({x, alpha});
    return snake(x, alpha);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto& x = saved[0];
    const auto& alpha = saved[1];
    const auto slope = (2 * alpha * x).sin();  // d(sin(alpha x)^2) / d(alpha x)
    const auto by_alpha = x * slope / alpha - (alpha * x).sin().square() / alpha.square();
    return {grads[0] * (1 + slope), (grads[0] * by_alpha).sum(0)};
  }
};

at::Tensor snake_autograd(const at::Tensor& x, const at::Tensor& alpha) { return Snake::apply(x, alpha); }

// Composed of differentiable LibTorch operators: one function works on all devices and needs no backward pass.
at::Tensor low_rank_composite(const at::Tensor& x, const at::Tensor& down, const at::Tensor& up) {
  return x.matmul(down.t()).matmul(up.t());
}

}  // namespace

TORCH_LIBRARY(custom, m) {
  m.def("snake(Tensor x, Tensor alpha) -> Tensor");
  m.def("low_rank(Tensor x, Tensor down, Tensor up) -> Tensor");
}
TORCH_LIBRARY_IMPL(custom, CPU, m) { m.impl("snake", snake_cpu); }
TORCH_LIBRARY_IMPL(custom, Autograd, m) { m.impl("snake", snake_autograd); }
TORCH_LIBRARY_IMPL(custom, CompositeImplicitAutograd, m) { m.impl("low_rank", low_rank_composite); }

at::Tensor snake(const at::Tensor& x, const at::Tensor& alpha) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("custom::snake", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(x, alpha);
}

at::Tensor low_rank(const at::Tensor& x, const at::Tensor& down, const at::Tensor& up) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("custom::low_rank", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>();
  return op.call(x, down, up);
}
