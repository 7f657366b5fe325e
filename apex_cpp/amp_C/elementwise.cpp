#include <apex_cpp/amp_C/elementwise.h>

#include <apex_cpp/amp_C/detail/arguments.h>
#include "kernels/multi_tensor.h"
#include "kernels/optimizers.h"

using namespace apex;
using amp_C::detail::check_one_element;
using amp_C::detail::check_roles;
using amp_C::detail::kAlsoDouble;
using amp_C::detail::Role;
using amp_C::detail::Use;

void multi_tensor_scale_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                             float scale) {
  check_roles("multi_tensor_scale_cuda", chunk_size, noop_flag, tensor_lists,
              {{"in", Use::read, kAlsoDouble}, {"out", Use::write, kAlsoDouble}});
  kernels::multi_tensor_scale(noop_flag, tensor_lists[0], tensor_lists[1], scale);
}

void multi_tensor_axpby_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float a,
                             float b, int arg_to_check) {
  const char* const op = "multi_tensor_axpby_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists,
              {{"x", Use::read, kAlsoDouble}, {"y", Use::read, kAlsoDouble}, {"out", Use::write, kAlsoDouble}});
  TORCH_CHECK_VALUE(arg_to_check >= -1 && arg_to_check <= 1, op, ": arg_to_check is ", arg_to_check,
                    ". Use 0 for x, 1 for y or -1 for both.");
  kernels::multi_tensor_axpby(noop_flag, tensor_lists[0], tensor_lists[1], tensor_lists[2], a, b,
                              static_cast<kernels::CheckArg>(arg_to_check));
}

at::Tensor update_scale_hysteresis_cuda(at::Tensor current_scale, at::Tensor growth_tracker, at::Tensor hysteresis_tracker,
                                        at::Tensor found_inf, const double growth_factor, const double backoff_factor,
                                        const int64_t growth_interval, const int hysteresis) {
  const char* const op = "update_scale_hysteresis_cuda";
  TORCH_CHECK(current_scale.defined(), op, ": current_scale is undefined.");
  const c10::Device device = current_scale.device();
  check_one_element(op, "current_scale", current_scale, at::kFloat, device);
  check_one_element(op, "growth_tracker", growth_tracker, at::kInt, device);
  check_one_element(op, "hysteresis_tracker", hysteresis_tracker, at::kInt, device);
  check_one_element(op, "found_inf", found_inf, at::kFloat, device);
  TORCH_CHECK_VALUE(growth_interval == static_cast<int32_t>(growth_interval), op, ": growth_interval is ", growth_interval,
                    ". Pass a value within 32 bits.");
  const kernels::ScaleUpdate update = {static_cast<float>(growth_factor), static_cast<float>(backoff_factor),
                                       static_cast<int32_t>(growth_interval), hysteresis};
  kernels::update_scale_hysteresis({current_scale, growth_tracker, hysteresis_tracker}, found_inf.detach().gt(0).to(at::kInt),
                                   update);
  return current_scale;
}

namespace {

constexpr Role kIn = {"in", Use::read, kAlsoDouble};
constexpr Role kOut = {"out", Use::write, kAlsoDouble};

}  // namespace

std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_cuda(int chunk_size, at::Tensor noop_flag,
                                                            std::vector<std::vector<at::Tensor>> tensor_lists,
                                                            std::optional<bool> per_tensor_python) {
  check_roles("multi_tensor_l2norm_cuda", chunk_size, noop_flag, tensor_lists, {kIn});
  return kernels::multi_tensor_l2norm(noop_flag, tensor_lists[0], per_tensor_python.value_or(false));
}

std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_mp_cuda(int chunk_size, at::Tensor noop_flag,
                                                               std::vector<std::vector<at::Tensor>> tensor_lists,
                                                               std::optional<bool> per_tensor_python) {
  check_roles("multi_tensor_l2norm_mp_cuda", chunk_size, noop_flag, tensor_lists, {kIn});
  return kernels::multi_tensor_l2norm(noop_flag, tensor_lists[0], per_tensor_python.value_or(false));
}

std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_scale_cuda(int chunk_size, at::Tensor noop_flag,
                                                                  std::vector<std::vector<at::Tensor>> tensor_lists,
                                                                  float scale, std::optional<bool> per_tensor_python) {
  check_roles("multi_tensor_l2norm_scale_cuda", chunk_size, noop_flag, tensor_lists, {kIn, kOut});
  // Norms come first, since out may be in.
  auto norms = kernels::multi_tensor_l2norm(noop_flag, tensor_lists[0], per_tensor_python.value_or(false));
  kernels::multi_tensor_scale(noop_flag, tensor_lists[0], tensor_lists[1], scale);
  return norms;
}

std::tuple<at::Tensor, at::Tensor> multi_tensor_unscale_l2norm_cuda(int chunk_size, at::Tensor noop_flag,
                                                                    std::vector<std::vector<at::Tensor>> tensor_lists,
                                                                    at::Tensor inv_scale,
                                                                    std::optional<bool> per_tensor_python) {
  const char* const op = "multi_tensor_unscale_l2norm_cuda";
  check_roles(op, chunk_size, noop_flag, tensor_lists, {kIn});
  amp_C::detail::check_one_element(op, "inv_scale", inv_scale, at::kFloat, noop_flag.device());
  return kernels::multi_tensor_unscale_l2norm(noop_flag, tensor_lists[0], inv_scale, per_tensor_python.value_or(false));
}
