#pragma once
// Apex's C++ functions over lists of tensors, for ported code. Apex: the module amp_C (csrc/amp_C_frontend.cpp).
//
// Each has Apex's C++ name (multi_tensor_scale_cuda), Apex's arguments in Apex's order, and is, like there, outside of any
// namespace: code that declares it by itself still compiles and links. The names of the Python module (multi_tensor_scale) are
// in `apex::amp_C`, beside the C++ ones; both are the same functions, so `using namespace apex::amp_C` makes no call ambiguous.
//
// Lists: tensor_lists[i][t], list i is a role, t the tensor. Any number of tensors of any size; empty ones are skipped,
// wherever they are (MTA-06). `check_tensor_lists` says what is an error. Errors are c10::Error, name list and tensor, and are
// thrown before anything is changed. Devices: CPU and CUDA tensors. Despite the name nothing is CUDA's alone. On CUDA work is
// queued on the current stream; the host does not wait unless a function says so. Dtypes: float16, bfloat16 and float32, each
// list for itself: more than Apex has. Scale, axpby and norms take float64 as well. `chunk_size`: above 0, otherwise without
// effect: how work is cut is this library's affair, and results do not depend on it. `noop_flag`: an int32 tensor of one
// element on the tensors' device, never reset. Each function says what it does with it. Aliasing: an output may be an input of
// its own index, wholly. Any other overlap of an output is an error.
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
using ::multi_tensor_novograd_cuda;
using ::multi_tensor_scale_cuda;
using ::multi_tensor_sgd_cuda;
using ::multi_tensor_unscale_l2norm_cuda;
using ::update_scale_hysteresis_cuda;

/// The same functions under the names of the Python module (which has the two stages of LAMB under their C++ names).
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

/// With Apex's chunk size of 65,536 elements (MTA-01).
inline constexpr MultiTensorApply multi_tensor_applier{2048 * 32};

}  // namespace apex::amp_C
