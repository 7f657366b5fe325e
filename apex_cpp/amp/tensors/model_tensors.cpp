#include <apex_cpp/amp/tensors/model_tensors.h>

#include <apex_cpp/amp/tensors/low_precision.h>

namespace apex::amp::detail {

std::vector<std::pair<std::string, at::Tensor>> tensors_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

at::Tensor widened(const at::Tensor& tensor) {
  return is_low_precision(tensor.scalar_type()) ? tensor.detach().to(at::kFloat) : tensor;
}

}  // namespace apex::amp::detail
