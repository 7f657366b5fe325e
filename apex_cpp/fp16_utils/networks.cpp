#include <apex_cpp/fp16_utils/networks.h>

#include <c10/util/Exception.h>
#include <torch/nn/utils/clip_grad.h>

namespace apex::fp16_utils::detail {

void warn_deprecated(const char* name, const char* instead) {
  TORCH_WARN_DEPRECATION("apex::fp16_utils::", name, " is kept for programs from before amp. New code: ", instead, ".");
}

}  // namespace apex::fp16_utils::detail

namespace apex::fp16_utils {

double to_python_float(const at::Tensor& tensor) { return tensor.item().toDouble(); }

double clip_grad_norm(const std::vector<at::Tensor>& params, double max_norm, double norm_type) {
  return torch::nn::utils::clip_grad_norm_(params, max_norm, norm_type);
}

torch::nn::Module& BN_convert_float(torch::nn::Module& module) {
  module.apply([](torch::nn::Module& each) {
    if (is_affine_batch_norm(each)) convert_module(each, torch::kFloat);
  });
  return module;
}

}  // namespace apex::fp16_utils
