#pragma once
// Apex's C++ functions on lists of tensors, for ported code. Apex: the module amp_C (csrc/amp_C_frontend.cpp).
//
// Each function has Apex's C++ name (multi_tensor_scale_cuda) and Apex's arguments in Apex's order, and is in no namespace, as
// in Apex: code that declares the function itself still compiles and links. `apex::amp_C` has the functions under the names of
// the Python module (multi_tensor_scale), too. Both names refer to the same functions, so `using namespace apex::amp_C` makes
// no call ambiguous.
//
// Lists: tensor_lists[i][t] is tensor t in the role of list i. Lists may have any number of tensors of any size; empty tensors
// are skipped, wherever they are (MTA-06). Errors: `check_tensor_lists` names them. They are c10::Errors that name list and
// tensor, and are thrown before anything is changed. Devices: CPU and CUDA tensors, despite the names. On CUDA, work is queued
// on the current stream; the host waits only where a function says so. Dtypes: float16, bfloat16 and float32, separately for
// each list, which is more than Apex accepts. Scale, axpby and norms also accept float64. `chunk_size`: any value above 0; it
// has no effect, since this library cuts the work itself and results do not depend on it. `noop_flag`: an int32 tensor with one
// element on the tensors' device, never reset; each function says how it uses the flag. Aliasing: an output may be exactly the
// input of the same index. Any other overlap of an output is an error.
#include <apex_cpp/amp_C/elementwise.h>
#include <apex_cpp/amp_C/optimizers.h>

#include <utility>

namespace apex::amp_C {

using ::multi_tensor_adagrad_cuda;
using ::multi_tensor_adam_capturable_cuda;
using ::multi_tensor_adam_capturable_master_cuda;
using ::multi_tensor_adam_cuda;
using ::multi_tensor_axpby_cuda;
using ::multi_tensor_l2norm_cuda;
using ::multi_tensor_l2norm_mp_cuda;
using ::multi_tensor_l2norm_scale_cuda;
using ::multi_tensor_lamb_cuda;
using ::multi_tensor_lamb_mp_cuda;
using ::multi_tensor_lamb_stage1_cuda;
using ::multi_tensor_lamb_stage2_cuda;
using ::multi_tensor_lars_cuda;
using ::multi_tensor_novograd_cuda;
using ::multi_tensor_scale_cuda;
using ::multi_tensor_sgd_cuda;
using ::multi_tensor_unscale_l2norm_cuda;
using ::update_scale_hysteresis_cuda;

/// The same functions under the names of the Python module, in which only the two stages of LAMB have their C++ names.
inline constexpr auto& multi_tensor_adagrad = ::multi_tensor_adagrad_cuda;
inline constexpr auto& multi_tensor_adam = ::multi_tensor_adam_cuda;
inline constexpr auto& multi_tensor_adam_capturable = ::multi_tensor_adam_capturable_cuda;
inline constexpr auto& multi_tensor_adam_capturable_master = ::multi_tensor_adam_capturable_master_cuda;
inline constexpr auto& multi_tensor_axpby = ::multi_tensor_axpby_cuda;
inline constexpr auto& multi_tensor_l2norm = ::multi_tensor_l2norm_cuda;
inline constexpr auto& multi_tensor_l2norm_mp = ::multi_tensor_l2norm_mp_cuda;
inline constexpr auto& multi_tensor_l2norm_scale = ::multi_tensor_l2norm_scale_cuda;
inline constexpr auto& multi_tensor_lamb = ::multi_tensor_lamb_cuda;
inline constexpr auto& multi_tensor_lamb_mp = ::multi_tensor_lamb_mp_cuda;
inline constexpr auto& multi_tensor_lars = ::multi_tensor_lars_cuda;
inline constexpr auto& multi_tensor_novograd = ::multi_tensor_novograd_cuda;
inline constexpr auto& multi_tensor_scale = ::multi_tensor_scale_cuda;
inline constexpr auto& multi_tensor_sgd = ::multi_tensor_sgd_cuda;
inline constexpr auto& multi_tensor_unscale_l2norm = ::multi_tensor_unscale_l2norm_cuda;
inline constexpr auto& update_scale_hysteresis = ::update_scale_hysteresis_cuda;

/// Calls a function of this header with a chunk size, as Apex's Python code does:
/// `multi_tensor_applier(multi_tensor_scale, noop_flag, tensor_lists, 0.5f)`.
/// Apex: apex.multi_tensor_apply.MultiTensorApply.
struct MultiTensorApply {
  int chunk_size;

  template <class Op, class... Args>
  decltype(auto) operator()(const Op& op, const at::Tensor& noop_flag, const TensorLists& tensor_lists, Args&&... args) const {
    return op(chunk_size, noop_flag, tensor_lists, std::forward<Args>(args)...);
  }
};

/// Uses Apex's chunk size of 65,536 elements (MTA-01).
inline constexpr MultiTensorApply multi_tensor_applier{2048 * 32};

}  // namespace apex::amp_C
