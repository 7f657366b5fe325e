#include "kernels/multi_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "kernels/aten_fallback.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/multi_tensor_cuda.h"
#include "kernels/moved_to.h"
#include "kernels/plan/reuse.h"
#include "kernels/update.h"

namespace apex::kernels {
namespace {

using plan::Access;
using plan::checked_groups;

void raise(const at::Tensor& found_inf, bool found) {
  if (found) found_inf.fill_(1);
}

void raise(const at::Tensor& found_inf, const at::Tensor& found) {
  found_inf.masked_fill_(moved_to(found_inf.device(), found), 1);
}

// Calls cpu(group), cuda(call) or elsewhere(group) for each part of a call, by device.
template <class Cpu, class Cuda, class Elsewhere>
void for_each_part(const plan::Groups& groups, const Cpu& cpu, const Cuda& cuda, const Elsewhere& elsewhere) {
  for (const plan::Group& group : *groups) {
    if (cuda::handles(group.device)) continue;
    group.device.is_cpu() ? cpu(group) : elsewhere(group);
  }
  for (const cuda::Call& call : cuda::calls_of(groups)) cuda(call);
}

// One float64 value per tensor on one device, collected from the parts of a call. A part has 0 for the tensors of others.
class ByIndex {
 public:
  ByIndex(size_t count, c10::Device device)
      : all_(at::zeros({static_cast<int64_t>(count)}, at::TensorOptions().dtype(at::kDouble).device(device))) {}

  void add(const at::Tensor& part) { all_.add_(moved_to(all_.device(), part)); }
  const at::Tensor& all() const { return all_; }

 private:
  at::Tensor all_;
};

void check_inv_scale(const char* op, const at::Tensor& inv_scale) {
  TORCH_CHECK(inv_scale.defined() && inv_scale.scalar_type() == at::kFloat && inv_scale.numel() == 1, op,
              ": inv_scale must be a Float tensor of one element",
              inv_scale.defined() ? c10::str(", got ", inv_scale.scalar_type(), " with sizes ", inv_scale.sizes()) : "", ".");
}

at::Tensor total_of(const at::Tensor& sums) {
  if (!sums.is_cpu()) return aten::ordered_sum(sums);
  const double total = cpu::ordered_sum({sums.const_data_ptr<double>(), static_cast<size_t>(sums.numel())});
  return at::full({1}, total, sums.options());
}

c10::Device device_of(at::TensorList in, const at::Tensor& found_inf) {
  return in.empty() ? found_inf.device() : in[0].device();
}

using Norms = std::tuple<at::Tensor, at::Tensor>;

at::Tensor roots_of(const at::Tensor& sums) { return sums.is_cpu() ? cpu::roots_of(sums) : aten::roots_of(sums); }

Norms as_floats(const at::Tensor& found_inf, const at::Tensor& total, const at::Tensor& each, bool per_tensor) {
  const at::Tensor norm = total.to(at::kFloat);
  raise(found_inf, aten::has_nonfinite(norm));
  return {norm, per_tensor ? each.to(at::kFloat) : at::empty({0}, norm.options())};
}

// L2 norms of in * inv_scale; an undefined `inv_scale` counts as 1.
Norms l2norm(const char* op, const at::Tensor& found_inf, at::TensorList in, const at::Tensor& inv_scale, bool per_tensor) {
  const plan::Groups groups = checked_groups(op, {{"in", in, Access::read}});
  const c10::Device device = device_of(in, found_inf);
  if (const auto whole = cuda::whole_call(groups, device)) return cuda::l2norm(*whole, found_inf, inv_scale, per_tensor);
  ByIndex sums(in.size(), device);
  for_each_part(
      groups,
      [&](const plan::Group& group) {
        sums.add(cpu::sums_of_squares(group, in.size(), inv_scale.defined() ? inv_scale.item<double>() : 1.0));
      },
      [&](const cuda::Call& call) { sums.add(cuda::sums_of_squares(call, inv_scale)); },
      [&](const plan::Group& group) { sums.add(aten::sums_of_squares(group, in, inv_scale)); });
  return as_floats(found_inf, roots_of(total_of(sums.all())), roots_of(sums.all()), per_tensor);
}

}  // namespace

void multi_tensor_scale(const at::Tensor& found_inf, at::TensorList in, at::TensorList out, double scale) {
  const char* const op = "multi_tensor_scale";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  const plan::Groups groups = checked_groups(op, {{"in", in, Access::read}, {"out", out, Access::write}});
  for_each_part(
      groups, [&](const plan::Group& group) { raise(found_inf, cpu::scale(group, scale)); },
      [&](const cuda::Call& call) { cuda::scale(call, found_inf, scale); },
      [&](const plan::Group& group) { raise(found_inf, aten::scale(group, in, out, scale)); });
  bump_versions(out);
}

void multi_tensor_unscale(const at::Tensor& found_inf, at::TensorList in, at::TensorList out, const at::Tensor& inv_scale) {
  const char* const op = "multi_tensor_unscale";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  check_inv_scale(op, inv_scale);
  const plan::Groups groups = checked_groups(op, {{"in", in, Access::read}, {"out", out, Access::write}});
  for_each_part(
      groups, [&](const plan::Group& group) { raise(found_inf, cpu::scale(group, inv_scale.item<double>())); },
      [&](const cuda::Call& call) { cuda::unscale(call, found_inf, inv_scale); },
      [&](const plan::Group& group) { raise(found_inf, aten::unscale(group, in, out, inv_scale)); });
  bump_versions(out);
}

void multi_tensor_check_finite(const at::Tensor& found_inf, at::TensorList in) {
  const char* const op = "multi_tensor_check_finite";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  const plan::Groups groups = checked_groups(op, {{"in", in, Access::read}});
  for_each_part(
      groups, [&](const plan::Group& group) { raise(found_inf, cpu::has_nonfinite(group)); },
      [&](const cuda::Call& call) { cuda::check_finite(call, found_inf); },
      [&](const plan::Group& group) { raise(found_inf, aten::has_nonfinite(group, in)); });
}

void multi_tensor_axpby(const at::Tensor& found_inf, at::TensorList x, at::TensorList y, at::TensorList out, double a, double b,
                        CheckArg check) {
  const char* const op = "multi_tensor_axpby";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  const plan::Groups groups = checked_groups(op, {{"x", x, Access::read}, {"y", y, Access::read}, {"out", out, Access::write}});
  for_each_part(
      groups, [&](const plan::Group& group) { raise(found_inf, cpu::axpby(group, a, b, check)); },
      [&](const cuda::Call& call) { cuda::axpby(call, found_inf, a, b, check); },
      [&](const plan::Group& group) { raise(found_inf, aten::axpby(group, x, y, out, a, b, check)); });
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
  check_inv_scale(op, inv_scale);
  return l2norm(op, found_inf, in, inv_scale, per_tensor);
}

Norms multi_tensor_maxnorm(const at::Tensor& found_inf, at::TensorList in, bool per_tensor) {
  const char* const op = "multi_tensor_maxnorm";
  const at::NoGradGuard no_grad;
  plan::check_found_inf(op, found_inf);
  const plan::Groups groups = checked_groups(op, {{"in", in, Access::read}});
  const c10::Device device = device_of(in, found_inf);
  if (const auto whole = cuda::whole_call(groups, device)) return cuda::maxnorm(*whole, found_inf, per_tensor);
  ByIndex each(in.size(), device);
  for_each_part(
      groups, [&](const plan::Group& group) { each.add(cpu::max_magnitudes(group, in.size())); },
      [&](const cuda::Call& call) { each.add(cuda::max_magnitudes(call)); },
      [&](const plan::Group& group) { each.add(aten::max_magnitudes(group, in)); });
  const at::Tensor largest = in.empty() ? at::zeros({1}, each.all().options()) : each.all().max().reshape({1});
  return as_floats(found_inf, largest, each.all(), per_tensor);
}

void multi_tensor_copy(at::TensorList from, at::TensorList to) {
  const at::NoGradGuard no_grad;
  const plan::Groups groups = checked_groups("multi_tensor_copy", {{"from", from, Access::read}, {"to", to, Access::write}});
  for_each_part(
      groups, [&](const plan::Group& group) { cpu::copy(group); }, [&](const cuda::Call& call) { cuda::copy(call); },
      [&](const plan::Group& group) { aten::copy(group, from, to); });
  bump_versions(to);
}

}  // namespace apex::kernels
