#pragma once

#include <apex_cpp/amp/tensors/convert_network.h>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace apex::fp16_utils::detail {

/// Warns (c10::DeprecationWarning) that `name` is kept for programs from before `amp`, and what to use in new code.
void warn_deprecated(const char* name, const char* instead);

constexpr const char* kInsteadOfMasters = "amp::initialize(model, optimizer, \"O2\") and amp::scale_loss";

}  // namespace apex::fp16_utils::detail

namespace apex::fp16_utils {

/// The value of a tensor of one element, any dtype; waits for its device. Apex: `fp16_utils.to_python_float` (FP16U-09).
double to_python_float(const at::Tensor& tensor);

/// `torch::nn::utils::clip_grad_norm_`: scales the gradients in place so that their total norm is at most `max_norm`, and
/// returns the norm before scaling. Apex: `fp16_utils.clip_grad_norm` (FP16U-09).
double clip_grad_norm(const std::vector<at::Tensor>& params, double max_norm, double norm_type = 2.0);

/// Casts the floating parameters, gradients and buffers of `module`, but not of its children, to `dtype` in place. Every
/// TensorImpl stays the same object, so optimizers that hold the parameters remain valid. Works on any device without
/// synchronisation. Apex: `fp16_utils.convert_module`.
using amp::detail::convert_module;

/// Casts a whole network to `dtype`, except for batch norms with affine parameters, whose weights and statistics are not
/// changed. Batch norms without affine parameters and all other normalisations are cast. RNN weights are flattened again. Apex:
/// `fp16_utils.convert_network`.
using amp::detail::convert_network;

/// Casts every floating parameter, gradient and buffer of a network to `dtype`, batch norms included.
using amp::detail::convert_all;

/// Whether `module` is a batch norm with affine parameters, which `convert_network` does not cast.
using amp::detail::is_affine_batch_norm;

// Whole networks in half precision, for programs from before `amp`. New code calls `amp::initialize` with "O2" or "O3".

/// Casts its input to float16, differentiably. Apex: `fp16_utils.tofp16` (FP16U-01).
struct ToFp16Impl : torch::nn::Cloneable<ToFp16Impl> {
  void reset() override {}
  torch::Tensor forward(const torch::Tensor& input) { return input.to(torch::kHalf); }
};
using tofp16 = torch::nn::ModuleHolder<ToFp16Impl>;

/// Casts batch norms with affine parameters back to float32, in place, recursively. Apex: `fp16_utils.BN_convert_float`
/// (FP16U-02), which also returns the module. For a holder or shared_ptr, pass `*net`.
torch::nn::Module& BN_convert_float(torch::nn::Module& module);

namespace detail {

/// Errors: ValueError for an empty pointer or holder.
template <class Net>
void check_not_null(const char* name, const Net& net) {
  if constexpr (std::is_constructible_v<bool, const Net&>) {
    TORCH_CHECK_VALUE(static_cast<bool>(net), "fp16_utils::", name, " was given a null network. Construct it first.");
  }
}

/// A network behind a cast of its inputs to float16. `Net` is a TORCH_MODULE holder or a shared_ptr to a module.
template <class Net>
class HalfInputs : public torch::nn::Module {
 public:
  explicit HalfInputs(Net net) : net_(std::move(net)) {}

  /// Casts every tensor among the arguments to float16, whatever its dtype; the result has the dtype that the network gives it.
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    return net_->forward(halved(std::forward<Args>(args))...);
  }

 protected:
  template <class Arg>
  static decltype(auto) halved(Arg&& arg) {
    if constexpr (std::is_same_v<std::decay_t<Arg>, torch::Tensor>) {
      return arg.to(torch::kHalf);
    } else {
      return std::forward<Arg>(arg);
    }
  }

  Net net_;
};

}  // namespace detail

/// The result of `network_to_half`, with the children "0" (the cast) and "1" (the network), as in Apex's Sequential.
template <class Net>
class HalfNetworkImpl : public detail::HalfInputs<Net> {
 public:
  explicit HalfNetworkImpl(Net net) : detail::HalfInputs<Net>(std::move(net)) {
    this->register_module("0", tofp16());
    this->register_module("1", this->net_);
  }
};

/// Casts `net` to float16 in place, except for batch norms with affine parameters, and adds a cast of its input.
/// Works on any device, without synchronisation. Errors: ValueError for a null network. Apex: `fp16_utils.network_to_half`
/// (FP16U-03).
template <class Net>
std::shared_ptr<HalfNetworkImpl<Net>> network_to_half(Net net) {
  detail::check_not_null("network_to_half", net);
  convert_all(*net, torch::kHalf);
  BN_convert_float(*net);
  return std::make_shared<HalfNetworkImpl<Net>>(std::move(net));
}

/// A network converted by `convert_network` at construction, whose forward casts its inputs to float16; the network is the
/// child "network". Warns that it is deprecated. Errors: ValueError for a null network. Apex: `fp16_utils.FP16Model`
/// (FP16U-05).
template <class Net>
class FP16Model : public detail::HalfInputs<Net> {
 public:
  explicit FP16Model(Net network) : detail::HalfInputs<Net>(std::move(network)) {
    detail::check_not_null("FP16Model", this->net_);
    detail::warn_deprecated("FP16Model", "amp::initialize(model, optimizer, \"O2\")");
    convert_network(*this->net_, torch::kHalf);
    this->register_module("network", this->net_);
  }
};

}  // namespace apex::fp16_utils
