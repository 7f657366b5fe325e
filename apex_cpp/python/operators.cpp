// The functions of apex_cpp/amp_C.h as operators apex_cpp::NAME of torch, which Python's amp_C calls. Names and order of
// arguments are those of Apex's extension module amp_C. Last arguments that may be None may be left out, too.
#include <apex_cpp/amp_C/elementwise.h>
#include <apex_cpp/amp_C/optimizers.h>
#include <torch/library.h>

#include <limits>
#include <utility>

namespace {

// An operator takes integers and real numbers as Python has them. Those that Apex's function does not hold are errors.
template <class T>
struct Argument {
  using type = T;
  static T to(T value) { return value; }
};
template <>
struct Argument<int> {
  using type = int64_t;
  static int to(int64_t value) {
    TORCH_CHECK_VALUE(value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max(), "amp_C: ", value,
                      " does not fit into the 32-bit integer that Apex's function takes");
    return static_cast<int>(value);
  }
};
template <>
struct Argument<float> {
  using type = double;
  static float to(double value) { return static_cast<float>(value); }
};

template <auto function>
struct Operator;
template <class R, class... Args, R (*function)(Args...)>
struct Operator<function> {
  static R call(typename Argument<Args>::type... args) { return function(Argument<Args>::to(std::move(args))...); }
};

TORCH_LIBRARY(apex_cpp, library) {
  library.def("multi_tensor_scale(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, float scale) -> ()",
              &Operator<multi_tensor_scale_cuda>::call);
  library.def(
      "multi_tensor_axpby(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, float a, float b, int "
      "arg_to_check) -> ()",
      &Operator<multi_tensor_axpby_cuda>::call);
  library.def(
      "multi_tensor_l2norm(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, bool? "
      "per_tensor_python=None) -> (Tensor, Tensor)",
      &Operator<multi_tensor_l2norm_cuda>::call);
  library.def(
      "multi_tensor_l2norm_mp(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, bool? "
      "per_tensor_python=None) -> (Tensor, Tensor)",
      &Operator<multi_tensor_l2norm_mp_cuda>::call);
  library.def(
      "multi_tensor_l2norm_scale(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, float scale, "
      "bool? per_tensor_python=None) -> (Tensor, Tensor)",
      &Operator<multi_tensor_l2norm_scale_cuda>::call);
  library.def(
      "multi_tensor_unscale_l2norm(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, Tensor "
      "inv_scale, bool? per_tensor_python=None) -> (Tensor, Tensor)",
      &Operator<multi_tensor_unscale_l2norm_cuda>::call);
  library.def(
      "multi_tensor_sgd(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, float wd, float "
      "momentum, float dampening, float lr, bool nesterov, bool first_run, bool wd_after_momentum, float "
      "scale) -> ()",
      &Operator<multi_tensor_sgd_cuda>::call);
  library.def(
      "multi_tensor_adam(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, float lr, float beta1, "
      "float beta2, float epsilon, int step, int mode, int bias_correction, float weight_decay) -> ()",
      &Operator<multi_tensor_adam_cuda>::call);
  library.def(
      "multi_tensor_adam_capturable(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, Tensor lr, "
      "float beta1, float beta2, float epsilon, Tensor step, int mode, int bias_correction, float "
      "weight_decay, Tensor inv_scale) -> ()",
      &Operator<multi_tensor_adam_capturable_cuda>::call);
  library.def(
      "multi_tensor_adam_capturable_master(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, "
      "Tensor lr, float beta1, float beta2, float epsilon, Tensor step, int mode, int bias_correction, "
      "float weight_decay, Tensor inv_scale) -> ()",
      &Operator<multi_tensor_adam_capturable_master_cuda>::call);
  library.def(
      "multi_tensor_adagrad(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, float lr, float "
      "epsilon, int mode, float weight_decay) -> ()",
      &Operator<multi_tensor_adagrad_cuda>::call);
  library.def(
      "multi_tensor_lars(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, Tensor grad_norms, Tensor "
      "param_norms, float lr, float trust_coefficient, float epsilon, float weight_decay, float momentum, "
      "float dampening, bool nesterov, bool first_run, bool wd_after_momentum, float scale, bool is_skipped) "
      "-> ()",
      &Operator<multi_tensor_lars_cuda>::call);
  library.def(
      "multi_tensor_novograd(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, Tensor grad_norms, "
      "float lr, float beta1, float beta2, float epsilon, int step, int bias_correction, float "
      "weight_decay, int grad_averaging, int mode, int norm_type) -> ()",
      &Operator<multi_tensor_novograd_cuda>::call);
  library.def(
      "multi_tensor_lamb(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, float lr, float beta1, "
      "float beta2, float epsilon, int step, int bias_correction, float weight_decay, int grad_averaging, "
      "int mode, Tensor global_grad_norm, float max_grad_norm, bool? use_nvlamb_python=None) -> ()",
      &Operator<multi_tensor_lamb_cuda>::call);
  library.def(
      "multi_tensor_lamb_mp(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, Tensor lr, float "
      "beta1, float beta2, float epsilon, Tensor step, int bias_correction, float weight_decay, int "
      "grad_averaging, int mode, Tensor global_grad_norm, Tensor max_grad_norm, bool? use_nvlamb_python, "
      "Tensor found_inf, Tensor inv_scale) -> ()",
      &Operator<multi_tensor_lamb_mp_cuda>::call);
  library.def(
      "multi_tensor_lamb_stage1_cuda(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, Tensor "
      "per_tensor_decay, int step, float beta1, float beta2, float epsilon, Tensor global_grad_norm, float "
      "max_global_grad_norm) -> ()",
      &Operator<multi_tensor_lamb_stage1_cuda>::call);
  library.def(
      "multi_tensor_lamb_stage2_cuda(int chunk_size, Tensor noop_flag, Tensor[][] tensor_lists, Tensor "
      "per_tensor_param_norm, Tensor per_tensor_update_norm, float lr, float weight_decay, bool? "
      "use_nvlamb_python=None) -> ()",
      &Operator<multi_tensor_lamb_stage2_cuda>::call);
  library.def(
      "update_scale_hysteresis(Tensor current_scale, Tensor growth_tracker, Tensor hysteresis_tracker, "
      "Tensor found_inf, float growth_factor, float backoff_factor, int growth_interval, int hysteresis) -> "
      "Tensor",
      &Operator<update_scale_hysteresis_cuda>::call);
}

}  // namespace
