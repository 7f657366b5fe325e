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

/// Tensors that stay as they are.
class Spared {
 public:
  void add(const at::Tensor& tensor) {
    impls_.insert(tensor.unsafeGetTensorImpl());
    if (has_shared_memory(tensor)) shared_.push_back(tensor);
  }
  /// Whether `tensor` is one of them, or tied to one.
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

void CastsInPlace::cast(torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return;
  const torch::NoGradGuard no_grad;
  // The gradient first: a float gradient on a half parameter would be taken for one of the new dtype.
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
  CastsInPlace casts(dtype);
  for_each_own_tensor(module, [&](const std::string&, torch::Tensor& tensor) { casts.cast(tensor); });
}

void convert_others(torch::nn::Module& network, CastsInPlace& casts, const SparesTensor& spares) {
  Spared spared;  // a tensor that a spared module shares with another one stays as well
  network.apply([&](const std::string& path, torch::nn::Module& module) {
    const std::string prefix = path.empty() ? "" : path + ".";
    for_each_own_tensor(module, [&](const std::string& name, const torch::Tensor& tensor) {
      if (spares(prefix + name, module)) spared.add(tensor);
    });
  });
  network.apply([&](const std::string&, torch::nn::Module& module) {
    bool any = false;
    for_each_own_tensor(module, [&](const std::string&, torch::Tensor& tensor) {
      if (spared.has(tensor)) return;
      casts.cast(tensor);
      any = true;
    });
    // cuDNN wants the weights of an RNN in one chunk; the cast gave each its own.
    if (!any) return;
    flatten_if<torch::nn::LSTMImpl>(module) || flatten_if<torch::nn::GRUImpl>(module) || flatten_if<torch::nn::RNNImpl>(module);
  });
}

void convert_network(torch::nn::Module& network, c10::ScalarType dtype) {
  CastsInPlace casts(dtype);
  convert_others(network, casts, [](const std::string&, const auto& module) { return is_affine_batch_norm(module); });
}

void convert_all(torch::nn::Module& network, c10::ScalarType dtype) {
  CastsInPlace casts(dtype);
  convert_others(network, casts, [](const auto&...) { return false; });
}

}  // namespace apex::amp::detail
