#include "kernels/multi_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "kernels/aten/driver.h"
#include "kernels/cpu/driver.h"
#include "kernels/plan/reuse.h"
#include "kernels/update.h"

namespace apex::kernels {
namespace {

using plan::Access;
using plan::checked_groups;

void raise(const at::Tensor& found_inf, bool found) {
  if (found) found_inf.fill_(1);
}

// Waits for the device of `found` only if `found_inf` is on the CPU.
void raise(const at::Tensor& found_inf, const at::Tensor& found) {
  found_inf.masked_fill_(found.to(found_inf.device(), /*non_blocking=*/!found_inf.is_cpu()), 1);
}

// of_group(group), float64 values by index with 0 for tensors of other groups, added up on the device `target`.
template <class OfGroup>
at::Tensor gathered(const plan::Groups& groups, size_t count, c10::Device target, const OfGroup& of_group) {
  at::Tensor all = at::zeros({static_cast<int64_t>(count)}, at::TensorOptions().dtype(at::kDouble).device(target));
  for (const plan::Group& group : *groups) all.add_(of_group(group).to(target, /*non_blocking=*/!target.is_cpu()));
  return all;
}

at::Tensor total_of(const at::Tensor& sums) {
  if (!sums.is_cpu()) return sums.sum().reshape({1});
  const double total = cpu::ordered_sum({sums.const_data_ptr<double>(), static_cast<size_t>(sums.numel())});
  return at::full({1}, total, sums.options());
}

c10::Device device_of(at::TensorList in, const at::Tensor& found_inf) {
  return in.empty() ? found_inf.device() : in[0].device();
}

using Norms = std::tuple<at::Tensor, at::Tensor>;

Norms as_floats(const at::Tensor& found_inf, const at::Tensor& total, const at::Tensor& each, bool per_tensor) {
  const at::Tensor norm = total.to(at::kFloat);
  raise(found_inf, aten::has_nonfinite(norm));
  return {norm, per_tensor ? each.to(at::kFloat) : at::empty({0}, norm.options())};
}

// L2 norms of in * inv_scale; an undefined `inv_scale` is 1.
Norms l2norm(const char* op, const at::Tensor& found_inf, at::TensorList in, const at::Tensor& inv_scale, bool per_tensor) {
  const plan::Groups groups = checked_groups(op, {{"in", in, Access::read}});
  const at::Tensor sums = gathered(groups, in.size(), device_of(in, found_inf), [&](const plan::Group& group) {
    if (!group.device.is_cpu()) return aten::sums_of_squares(group, in, inv_scale);
    return cpu::sums_of_squares(group, in.size(), inv_scale.defined() ? inv_scale.item<double>() : 1.0);
  });
  return as_floats(found_inf, total_of(sums).sqrt(), sums.sqrt(), per_tensor);
}

}  // namespace

void multi_tensor_scale(const at::Tensor& found_inf, at::TensorList in, at::TensorList out, double scale) {
  const char* const op = "multi_tensor_scale";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  const plan::Groups groups = checked_groups(op, {{"in", in, Access::read}, {"out", out, Access::write}});
  for (const plan::Group& group : *groups) {
    if (group.device.is_cpu()) {
      raise(found_inf, cpu::scale(group, scale));
    } else {
      raise(found_inf, aten::scale(group, in, out, scale));
    }
  }
  bump_versions(out);
}

void multi_tensor_axpby(const at::Tensor& found_inf, at::TensorList x, at::TensorList y, at::TensorList out, double a, double b,
                        CheckArg check) {
  const char* const op = "multi_tensor_axpby";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  const plan::Groups groups = checked_groups(op, {{"x", x, Access::read}, {"y", y, Access::read}, {"out", out, Access::write}});
  for (const plan::Group& group : *groups) {
    if (group.device.is_cpu()) {
      raise(found_inf, cpu::axpby(group, a, b, check));
    } else {
      raise(found_inf, aten::axpby(group, x, y, out, a, b, check));
    }
  }
  bump_versions(out);
}

Norms multi_tensor_l2norm(const at::Tensor& found_inf, at::TensorList in, bool per_tensor) {
  const char* const op = "multi_tensor_l2norm";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  return l2norm(op, found_inf, in, at::Tensor(), per_tensor);
}

Norms multi_tensor_unscale_l2norm(const at::Tensor& found_inf, at::TensorList in, const at::Tensor& inv_scale,
                                  bool per_tensor) {
  const char* const op = "multi_tensor_unscale_l2norm";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  TORCH_CHECK(inv_scale.defined() && inv_scale.scalar_type() == at::kFloat && inv_scale.numel() == 1, op,
              ": inv_scale must be a Float tensor of one element",
              inv_scale.defined() ? c10::str(", got ", inv_scale.scalar_type(), " with sizes ", inv_scale.sizes()) : "", ".");
  return l2norm(op, found_inf, in, inv_scale, per_tensor);
}

Norms multi_tensor_maxnorm(const at::Tensor& found_inf, at::TensorList in, bool per_tensor) {
  const char* const op = "multi_tensor_maxnorm";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  const plan::Groups groups = checked_groups(op, {{"in", in, Access::read}});
  const at::Tensor each = gathered(groups, in.size(), device_of(in, found_inf), [&](const plan::Group& group) {
    return group.device.is_cpu() ? cpu::max_magnitudes(group, in.size()) : aten::max_magnitudes(group, in);
  });
  const at::Tensor largest = in.empty() ? at::zeros({1}, each.options()) : each.max().reshape({1});
  return as_floats(found_inf, largest, each, per_tensor);
}

void multi_tensor_copy(at::TensorList from, at::TensorList to) {
  const at::NoGradGuard no_grad;
  const plan::Groups groups = checked_groups("multi_tensor_copy", {{"from", from, Access::read}, {"to", to, Access::write}});
  for (const plan::Group& group : *groups) {
    if (group.device.is_cpu()) {
      cpu::copy(group);
    } else {
      aten::copy(group, from, to);
    }
  }
  bump_versions(to);
}

}  // namespace apex::kernels
