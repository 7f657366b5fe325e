#include <apex_cpp/apex_C.h>

#include <ATen/Functions.h>

namespace apex::apex_C {

at::Tensor flatten(std::vector<at::Tensor> tensors) { return at::flatten_dense_tensors(tensors); }

std::vector<at::Tensor> unflatten(const at::Tensor& flat, std::vector<at::Tensor> tensors) {
  return at::unflatten_dense_tensors(flat, tensors);
}

}  // namespace apex::apex_C
