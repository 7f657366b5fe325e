#include <apex_cpp/amp/tensors/model_tensors.h>

#include <ATen/MemoryOverlap.h>
#include <apex_cpp/amp/tensors/low_precision.h>
#include <c10/core/InferenceMode.h>

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

bool has_shared_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.storage().use_count() > 1;
}

bool are_tied(const at::Tensor& a, const at::Tensor& b) {
  return has_shared_memory(a) && has_shared_memory(b) && at::get_overlap_status(a, b) == at::MemOverlapStatus::Full;
}

void give_each_element_memory(const at::Tensor& tensor) {
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  const c10::InferenceMode off(false);  // memory that is made in it could not be written outside of it
  tensor.set_data(tensor.detach().clone(at::MemoryFormat::Contiguous));
}

}  // namespace apex::amp::detail
