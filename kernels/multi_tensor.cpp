#include "kernels/multi_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "kernels/aten/driver.h"
#include "kernels/cpu/driver.h"
#include "kernels/plan/plan.h"

namespace apex::kernels {
namespace {

using plan::Access;

void raise(const at::Tensor& found_inf, bool found) {
  if (found) found_inf.fill_(1);
}

// Waits for the device of `found` only if `found_inf` is on the CPU.
void raise(const at::Tensor& found_inf, const at::Tensor& found) {
  found_inf.masked_fill_(found.to(found_inf.device(), /*non_blocking=*/!found_inf.is_cpu()), 1);
}

std::vector<plan::Group> checked_groups(const char* op, plan::TensorLists lists) {
  plan::check_lists(op, lists);
  return plan::make_groups(lists);
}

// Autograd finds out by version counters that a tensor it saved was written to. Drivers that write through pointers do
// not move them.
void bump_versions(at::TensorList written) {
  for (const at::Tensor& tensor : written) tensor.unsafeGetTensorImpl()->bump_version();
}

// One sum for each tensor of `in`, as float64 on the device `target`.
at::Tensor sums_of_squares(const std::vector<plan::Group>& groups, at::TensorList in, c10::Device target) {
  at::Tensor sums = at::zeros({static_cast<int64_t>(in.size())}, at::TensorOptions().dtype(at::kDouble).device(target));
  for (const plan::Group& group : groups) {
    const at::Tensor of_group =
        group.device.is_cpu() ? cpu::sums_of_squares(group, in.size()) : aten::sums_of_squares(group, in);
    // Tensors of other groups count 0 here.
    sums.add_(of_group.to(target, /*non_blocking=*/!target.is_cpu()));
  }
  return sums;
}

at::Tensor total_of(const at::Tensor& sums) {
  if (!sums.is_cpu()) return sums.sum().reshape({1});
  const double total = cpu::ordered_sum({sums.const_data_ptr<double>(), static_cast<size_t>(sums.numel())});
  return at::full({1}, total, sums.options());
}

}  // namespace

void multi_tensor_scale(const at::Tensor& found_inf, at::TensorList in, at::TensorList out, double scale) {
  const char* const op = "multi_tensor_scale";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  for (const plan::Group& group : checked_groups(op, {{"in", in, Access::read}, {"out", out, Access::write}})) {
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
  for (const plan::Group& group :
       checked_groups(op, {{"x", x, Access::read}, {"y", y, Access::read}, {"out", out, Access::write}})) {
    if (group.device.is_cpu()) {
      raise(found_inf, cpu::axpby(group, a, b, check));
    } else {
      raise(found_inf, aten::axpby(group, x, y, out, a, b, check));
    }
  }
  bump_versions(out);
}

std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm(const at::Tensor& found_inf, at::TensorList in, bool per_tensor) {
  const char* const op = "multi_tensor_l2norm";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  const std::vector<plan::Group> groups = checked_groups(op, {{"in", in, Access::read}});
  const at::Tensor sums = sums_of_squares(groups, in, in.empty() ? found_inf.device() : in[0].device());
  const at::Tensor norm = total_of(sums).sqrt().to(at::kFloat);
  raise(found_inf, aten::has_nonfinite(norm));
  if (!per_tensor) return {norm, at::empty({0}, norm.options())};
  return {norm, sums.sqrt().to(at::kFloat)};
}

void multi_tensor_copy(at::TensorList from, at::TensorList to) {
  const at::NoGradGuard no_grad;
  for (const plan::Group& group :
       checked_groups("multi_tensor_copy", {{"from", from, Access::read}, {"to", to, Access::write}})) {
    if (group.device.is_cpu()) {
      cpu::copy(group);
    } else {
      aten::copy(group, from, to);
    }
  }
  bump_versions(to);
}

}  // namespace apex::kernels
