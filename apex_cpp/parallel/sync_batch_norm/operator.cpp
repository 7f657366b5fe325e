#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>

#include <apex_cpp/amp/casts/only_copy.h>
#include <apex_cpp/parallel/sync_batch_norm/autograd.h>
#include <apex_cpp/parallel/sync_batch_norm/marks.h>

// aten::batch_norm for every dispatch key that it comes to on a CPU or a GPU: LibTorch's own, except for marked modules.
namespace apex::parallel::detail {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                      const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  const auto mark = mark_of(eps);
  if (!mark) {
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
  }
  const auto tensor = [](const OptionalTensor& optional) { return optional.value_or(at::Tensor()); };
  const NormTensors tensors{tensor(weight), tensor(bias), tensor(running_mean), tensor(running_var)};
  const NormSettings settings{momentum, mark->eps, mark->channel_last, mark->group};
  return training ? normalize_by_batch(input, tensors, settings) : normalize_by_running(input, tensors, settings);
}

struct Registration {
  std::vector<torch::Library> libraries;

  Registration() {
    if (!amp::detail::is_only_copy()) return;
    for (const auto key :
         {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
      auto& library = libraries.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, static_cast<uint32_t>(__LINE__));
      library.impl("batch_norm", TORCH_FN(batch_norm));
    }
  }
};

const Registration& registration() {
  static const Registration instance;
  return instance;
}

[[maybe_unused]] const Registration& at_load = registration();

}  // namespace

void register_marked_batch_norm() {
  registration();
  amp::detail::check_only_copy();
}

}  // namespace apex::parallel::detail
