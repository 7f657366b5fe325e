#include <apex_cpp/fp16_utils/functions.h>

#include <torch/nn/utils/clip_grad.h>

namespace apex::fp16_utils {

double to_python_float(const at::Tensor& tensor) { return tensor.item().toDouble(); }

double clip_grad_norm(const std::vector<at::Tensor>& params, double max_norm, double norm_type) {
  return torch::nn::utils::clip_grad_norm_(params, max_norm, norm_type);
}

}  // namespace apex::fp16_utils
