#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <apex_cpp/amp/handles/model.h>

namespace torch::nn::parallel {

// LibTorch's, in <torch/nn/parallel/data_parallel.h>, which whoever calls it includes.
template <typename ModuleType>
std::vector<std::shared_ptr<ModuleType>> replicate(const std::shared_ptr<ModuleType>& module,
                                                   const std::vector<at::Device>& devices);

}  // namespace torch::nn::parallel

namespace apex::amp {

/// Handles of deep copies of `model` on `devices`, which cast as it does on any thread, and whose gradients arrive at its
/// parameters. `torch::nn::parallel::data_parallel(net, input, devices)` finds it by its argument, so that replicas of a handle
/// run as the handle does. Given the original model, LibTorch's own copies that: its replicas cast by the lists of O1 and O4 as
/// it does itself; at O2, O3 and O5 its 16-bit replicas take 16-bit input alone. Errors: c10::Error for a module whose class
/// has no `clone()`: derive it from torch::nn::Cloneable.
template <class Net>
std::vector<Model<Net>> replicate(const Model<Net>& model, const std::vector<at::Device>& devices) {
  using PatchedImpl = std::decay_t<decltype(model.patched())>;
  std::vector<Model<Net>> replicas;
  for (auto& copy : torch::nn::parallel::replicate(model.ptr(), devices)) {
    if constexpr (std::is_same_v<PatchedImpl, typename Model<Net>::Impl>) {
      replicas.emplace_back(std::move(copy));
    } else {
      auto patched = std::make_shared<PatchedImpl>(std::move(copy));
      patched->set_amp_casts(model.patched().amp_casts());
      replicas.emplace_back(std::move(patched));
    }
  }
  return replicas;
}

}  // namespace apex::amp
