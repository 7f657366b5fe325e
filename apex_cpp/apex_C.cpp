#include <apex_cpp/apex_C.h>

#include <ATen/Functions.h>

namespace apex::apex_C {

at::Tensor flatten(std::vector<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.scalar_type() == tensors.front().scalar_type(), "apex_C::flatten: the tensors have the dtypes ",
                tensors.front().scalar_type(), " and ", tensor.scalar_type(), ". Call it for each dtype.");
  }
  const at::Tensor flat = at::flatten_dense_tensors(tensors);
  return flat.is_alias_of(tensors.front()) ? flat.clone() : flat;  // LibTorch returns a view of a tensor that is alone
}

std::vector<at::Tensor> unflatten(const at::Tensor& flat, std::vector<at::Tensor> tensors) {
  auto views = at::unflatten_dense_tensors(flat, tensors);
  for (size_t i = 0; i < views.size(); ++i) {
    if (tensors[i].numel() == 0) views[i] = views[i].view(tensors[i].sizes());  // LibTorch gives these the shape [0]
  }
  return views;
}

}  // namespace apex::apex_C
