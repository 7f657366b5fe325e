// Compiled by nvcc in builds with CUDA, otherwise by the C++ compiler; see CMakeLists.txt.
#include "lion.h"

#include "lion_functor.h"

namespace {

constexpr int kBlockSize = 512;

}  // namespace

void multi_tensor_lion_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float lr,
                            float beta1, float beta2, float weight_decay) {
  const char* const op = "multi_tensor_lion_cuda";
  apex::amp_C::check_tensor_lists(op, chunk_size, noop_flag, tensor_lists, 3, {"grads", "params", "exp_avgs"});
  const at::ScalarType dtype = tensor_lists[1][0].scalar_type();
  // The functor casts data pointers without checking, so the dtypes are checked here.
  TORCH_CHECK(tensor_lists[0][0].scalar_type() == dtype, op, ": grads are ", tensor_lists[0][0].scalar_type(), ", params ",
              dtype, ". Both must have the same dtype.");
  TORCH_CHECK(tensor_lists[2][0].scalar_type() == at::kFloat, op, ": exp_avgs are ", tensor_lists[2][0].scalar_type(),
              ". They must be Float.");
  const auto step = [&](auto functor) {
    multi_tensor_apply<3>(kBlockSize, chunk_size, noop_flag, tensor_lists, functor, lr, beta1, beta2, weight_decay);
  };
  switch (dtype) {
    case at::kFloat:
      return step(LionFunctor<float>());
    case at::kHalf:
      return step(LionFunctor<at::Half>());
    case at::kBFloat16:
      return step(LionFunctor<at::BFloat16>());
    default:
      TORCH_CHECK(false, op, ": params are ", dtype, ". Supported are Half, BFloat16 and Float.");
  }
}
