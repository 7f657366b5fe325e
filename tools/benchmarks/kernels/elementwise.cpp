// Scaling, adding, norms and copies.
#include <ATen/Functions.h>

#include "compare.h"
#include "kernels.h"
#include "kernels/multi_tensor.h"

namespace bench::kernels {
namespace {

constexpr double kScale = 1.0 / 1024;

/// An operation over lists of given dtypes.
struct Work {
  const char* name;
  at::ScalarType in, out;
  Comparison (*comparison)(const Tensors& in, const Tensors& out);
};

at::Tensor flag(const Tensors& in, at::ScalarType dtype) { return at::zeros({1}, in.front().options().dtype(dtype)); }

/// Unscales gradients into another tensor. Torch copies, then checks and unscales in place.
Comparison unscale(const Tensors& in, const Tensors& out) {
  const auto found_inf = flag(in, at::kInt);
  const auto theirs = [in, out, found = flag(in, at::kFloat), scale = flag(in, at::kFloat).fill_(kScale)]() mutable {
    at::_foreach_copy_(out, in);
    at::_amp_foreach_non_finite_check_and_unscale_(out, found, scale);
  };
  return {{{"apex_cpp", [=] { apex::kernels::multi_tensor_scale(found_inf, in, out, kScale); }}, {"foreach", theirs}},
          {{{in, Access::read}, {out, Access::write}}}};
}

/// Scales in place by 1, so that repeated calls do not change the values.
Comparison scale_in_place(const Tensors& in, const Tensors&) {
  const auto found_inf = flag(in, at::kInt);
  const auto theirs = [in, found = flag(in, at::kFloat), scale = flag(in, at::kFloat).fill_(1)]() mutable {
    at::_amp_foreach_non_finite_check_and_unscale_(in, found, scale);
  };
  return {{{"apex_cpp", [=] { apex::kernels::multi_tensor_scale(found_inf, in, in, 1.0); }}, {"foreach", theirs}},
          {{{in, Access::update}}}};
}

/// Adds gradients to stashed ones.
Comparison axpby(const Tensors& in, const Tensors& out) {
  const auto found_inf = flag(in, at::kInt);
  const auto theirs = [=] {
    const auto scaled = at::_foreach_mul(in, kScale);
    at::_foreach_add_(out, scaled);
  };
  return {{{"apex_cpp",
            [=] { apex::kernels::multi_tensor_axpby(found_inf, in, out, out, kScale, 1.0, apex::kernels::CheckArg::x); }},
           {"foreach", theirs}},
          {{{in, Access::read}, {out, Access::update}}}};
}

Comparison l2norm(const Tensors& in, const Tensors&) {
  const auto found_inf = flag(in, at::kInt);
  return {{{"apex_cpp", [=] { apex::kernels::multi_tensor_l2norm(found_inf, in, /*per_tensor=*/true); }},
           {"foreach", [=] { at::stack(at::_foreach_norm(in)).norm(); }}},
          {{{in, Access::read}}}};
}

Comparison copy(const Tensors& in, const Tensors& out) {
  return {{{"apex_cpp", [=] { apex::kernels::multi_tensor_copy(in, out); }}, {"foreach", [=] { at::_foreach_copy_(out, in); }}},
          {{{in, Access::read}, {out, Access::write}}}};
}

constexpr Work kWork[] = {
    {"unscale f16 to f32", at::kHalf, at::kFloat, unscale},
    {"unscale bf16 to f32", at::kBFloat16, at::kFloat, unscale},
    {"unscale f32 in place", at::kFloat, at::kFloat, scale_in_place},
    {"axpby f16, f32", at::kHalf, at::kFloat, axpby},
    {"l2norm f16", at::kHalf, at::kHalf, l2norm},
    {"l2norm f32", at::kFloat, at::kFloat, l2norm},
    {"copy f32 to f16", at::kFloat, at::kHalf, copy},
    {"copy f32 to bf16", at::kFloat, at::kBFloat16, copy},
    {"copy f16 to f32", at::kHalf, at::kFloat, copy},
};

}  // namespace

void run_elementwise(Runner& runner) {
  for (const auto& work : kWork) {
    for (const auto& shapes : cases()) {
      if (!runner.wants(work.name, shapes.name)) continue;
      const auto in = random(shapes, work.in, runner.device()), out = filled(shapes, work.out, runner.device(), 0);
      compare(runner, work.name, shapes.name, work.comparison(in, out));
    }
    runner.print_group();
  }
}

}  // namespace bench::kernels
