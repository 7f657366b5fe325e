#include <apex_cpp/amp_C/detail/arguments.h>
#include <apex_cpp/amp_C/detail/roles.h>
#include <apex_cpp/amp_C/norms.h>

#include "kernels/multi_tensor.h"

using namespace apex;
using amp_C::detail::check_roles;
using amp_C::detail::kAlsoDouble;
using amp_C::detail::Role;
using amp_C::detail::Use;

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
  // The norms first: out may be in.
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
