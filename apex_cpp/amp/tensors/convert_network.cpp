#include <apex_cpp/amp/tensors/convert_network.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <unordered_set>

#include <apex_cpp/amp/tensors/parameters.h>

namespace apex::amp::detail {
namespace {

template <class Rnn>
bool flatten_if(torch::nn::Module& module) {
  auto* rnn = module.as<Rnn>();
  if (rnn) rnn->flatten_parameters();
  return rnn != nullptr;
}

template <class BatchNorm>
bool is_affine(const torch::nn::Module& module) {
  const auto* norm = module.as<BatchNorm>();
  return norm && norm->options.affine();
}

template <class Visit>
void for_each_own_tensor(const torch::nn::Module& module, Visit&& visit) {
  for (auto& item : module.named_parameters(/*recurse=*/false)) visit(item.key(), item.value());
  for (auto& item : module.named_buffers(/*recurse=*/false)) visit(item.key(), item.value());
}

/// Tensors that are not cast.
class KeptTensors {
 public:
  void add(const at::Tensor& tensor) {
    impls_.insert(tensor.unsafeGetTensorImpl());
    if (has_shared_memory(tensor)) shared_.push_back(tensor);
  }
  /// Whether `tensor` was added, or is tied to a tensor that was.
  bool has(const at::Tensor& tensor) const {
    return impls_.count(tensor.unsafeGetTensorImpl()) > 0 ||
           std::any_of(shared_.begin(), shared_.end(), [&](const at::Tensor& each) { return are_tied(each, tensor); });
  }

 private:
  std::unordered_set<const at::TensorImpl*> impls_;
  std::vector<at::Tensor> shared_;
};

}  // namespace

bool is_affine_batch_norm(const torch::nn::Module& module) {
  if (const auto* norm = dynamic_cast<const BatchNormModule*>(&module)) return norm->is_affine();
  return is_affine<torch::nn::BatchNorm1dImpl>(module) || is_affine<torch::nn::BatchNorm2dImpl>(module) ||
         is_affine<torch::nn::BatchNorm3dImpl>(module);
}

void InPlaceCaster::cast(torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return;
  const torch::NoGradGuard no_grad;
  // Cast the gradient first: autograd expects a gradient in the parameter's dtype.
  if (tensor.grad().defined() && tensor.grad().is_floating_point()) {
    tensor.mutable_grad() = tensor.grad().detach().to(dtype_);
  }
  if (tensor.scalar_type() == dtype_) return;
  const bool is_shared = has_shared_memory(tensor);
  const at::Tensor before = tensor.detach();
  const auto tied =
      std::find_if(shared_.begin(), shared_.end(), [&](const Shared& each) { return are_tied(each.before, before); });
  tensor.set_data(tied == shared_.end() ? before.to(dtype_) : tied->after.detach());
  if (is_shared && tied == shared_.end()) shared_.push_back({before, tensor});
}

void convert_module(torch::nn::Module& module, c10::ScalarType dtype) {
  InPlaceCaster casts(dtype);
  for_each_own_tensor(module, [&](const std::string&, torch::Tensor& tensor) { casts.cast(tensor); });
}

void convert_unless(torch::nn::Module& network, InPlaceCaster& casts, const KeepsTensor& keeps) {
  KeptTensors kept;  // includes tensors that a kept module shares with a converted one
  network.apply([&](const std::string& path, torch::nn::Module& module) {
    const std::string prefix = path.empty() ? "" : path + ".";
    for_each_own_tensor(module, [&](const std::string& name, const torch::Tensor& tensor) {
      if (keeps(prefix + name, module)) kept.add(tensor);
    });
  });
  network.apply([&](const std::string&, torch::nn::Module& module) {
    bool any = false;
    for_each_own_tensor(module, [&](const std::string&, torch::Tensor& tensor) {
      if (kept.has(tensor)) return;
      casts.cast(tensor);
      any = true;
    });
    // cuDNN needs all weights of an RNN in one chunk; the cast has split them.
    if (!any) return;
    flatten_if<torch::nn::LSTMImpl>(module) || flatten_if<torch::nn::GRUImpl>(module) || flatten_if<torch::nn::RNNImpl>(module);
  });
}

void convert_network(torch::nn::Module& network, c10::ScalarType dtype) {
  InPlaceCaster casts(dtype);
  convert_unless(network, casts, [](const std::string&, const auto& module) { return is_affine_batch_norm(module); });
}

void convert_all(torch::nn::Module& network, c10::ScalarType dtype) {
  InPlaceCaster casts(dtype);
  convert_unless(network, casts, [](const auto&...) { return false; });
}

}  // namespace apex::amp::detail
