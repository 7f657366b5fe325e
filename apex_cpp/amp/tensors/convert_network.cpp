#include <apex_cpp/amp/tensors/convert_network.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/rnn.h>

#include <unordered_set>

#include <apex_cpp/amp/tensors/batch_norm_module.h>

namespace apex::amp::detail {
namespace {

void cast_in_place(torch::Tensor& tensor, c10::ScalarType dtype) {
  if (!tensor.defined() || !tensor.is_floating_point()) return;
  // The gradient first: a float gradient on a half parameter would be taken for one of the new dtype.
  if (tensor.grad().defined() && tensor.grad().is_floating_point()) {
    tensor.mutable_grad() = tensor.grad().detach().to(dtype);
  }
  if (tensor.scalar_type() != dtype) tensor.set_data(tensor.detach().to(dtype));
}

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
  for (auto& item : module.named_parameters(/*recurse=*/false)) visit(item.value());
  for (auto& item : module.named_buffers(/*recurse=*/false)) visit(item.value());
}

using Impls = std::unordered_set<const at::TensorImpl*>;

void convert_but(const Impls& kept, torch::nn::Module& module, c10::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  for_each_own_tensor(module, [&](torch::Tensor& tensor) {
    if (!kept.count(tensor.unsafeGetTensorImpl())) cast_in_place(tensor, dtype);
  });
}

}  // namespace

bool is_affine_batch_norm(const torch::nn::Module& module) {
  if (const auto* norm = dynamic_cast<const BatchNormModule*>(&module)) return norm->is_affine();
  return is_affine<torch::nn::BatchNorm1dImpl>(module) || is_affine<torch::nn::BatchNorm2dImpl>(module) ||
         is_affine<torch::nn::BatchNorm3dImpl>(module);
}

void convert_module(torch::nn::Module& module, c10::ScalarType dtype) { convert_but({}, module, dtype); }

void convert_others(torch::nn::Module& network, c10::ScalarType dtype, const SparesModule& spares) {
  Impls kept;  // a tensor that a spared module shares with another one stays as well
  network.apply([&](const std::string& path, torch::nn::Module& module) {
    if (!spares(path, module)) return;
    for_each_own_tensor(module, [&](const torch::Tensor& tensor) { kept.insert(tensor.unsafeGetTensorImpl()); });
  });
  network.apply([&](const std::string& path, torch::nn::Module& module) {
    if (spares(path, module)) return;
    convert_but(kept, module, dtype);
    // cuDNN wants the weights of an RNN in one chunk; the cast gave each its own.
    flatten_if<torch::nn::LSTMImpl>(module) || flatten_if<torch::nn::GRUImpl>(module) || flatten_if<torch::nn::RNNImpl>(module);
  });
}

void convert_network(torch::nn::Module& network, c10::ScalarType dtype) {
  convert_others(network, dtype, [](const std::string&, const auto& module) { return is_affine_batch_norm(module); });
}

void convert_all(torch::nn::Module& network, c10::ScalarType dtype) {
  convert_others(network, dtype, [](const auto&...) { return false; });
}

}  // namespace apex::amp::detail
