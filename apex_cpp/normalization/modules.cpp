#include <apex_cpp/normalization/modules.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <apex_cpp/normalization/functional.h>

namespace apex::normalization {
namespace detail {
namespace {

template <class Derived>
constexpr const char* kName = nullptr;
template <>
constexpr const char* kName<FusedLayerNormImpl> = "FusedLayerNorm";
template <>
constexpr const char* kName<FusedRMSNormImpl> = "FusedRMSNorm";
template <>
constexpr const char* kName<MixedFusedLayerNormImpl> = "MixedFusedLayerNorm";
template <>
constexpr const char* kName<MixedFusedRMSNormImpl> = "MixedFusedRMSNorm";

template <class Derived>
constexpr bool kHasBias = std::is_same_v<Derived, FusedLayerNormImpl> || std::is_same_v<Derived, MixedFusedLayerNormImpl>;

bool is_affine(const FusedNormOptions& options, const char*) { return options.elementwise_affine(); }

bool is_affine(const MixedFusedNormOptions& options, const char* name) {
  TORCH_CHECK(options.elementwise_affine().value_or(true), name,
              " does not support elementwise_affine(false): its weight decides the dtype of its output. Use the module of that "
              "name without 'Mixed'.");
  return true;
}

void warn_of_affine(const FusedNormOptions&, const char*) {}

void warn_of_affine(const MixedFusedNormOptions& options, const char* name) {
  if (options.elementwise_affine()) TORCH_WARN(name, " does not support the option elementwise_affine: it is always affine.");
}

}  // namespace

template <class Derived, class Options>
void NormModule<Derived, Options>::reset() {
  const bool affine = is_affine(options, kName<Derived>);
  if (!weight.defined()) warn_of_affine(options, kName<Derived>);
  const auto parameter = [&] { return affine ? at::empty(options.normalized_shape()) : at::Tensor(); };
  weight = this->register_parameter("weight", parameter(), /*requires_grad=*/affine);
  if (kHasBias<Derived>) bias = this->register_parameter("bias", parameter(), /*requires_grad=*/affine);
  reset_parameters();
}

template <class Derived, class Options>
void NormModule<Derived, Options>::reset_parameters() {
  const at::NoGradGuard no_grad;
  if (weight.defined()) weight.fill_(1);
  if (bias.defined()) bias.zero_();
}

template <class Derived, class Options>
void NormModule<Derived, Options>::pretty_print(std::ostream& stream) const {
  stream << "apex::normalization::" << kName<Derived> << "(" << c10::IntArrayRef(options.normalized_shape())
         << ", eps=" << options.eps() << ", elementwise_affine=" << std::boolalpha << weight.defined() << ")";
}

template class NormModule<FusedLayerNormImpl, FusedLayerNormOptions>;
template class NormModule<FusedRMSNormImpl, FusedRMSNormOptions>;
template class NormModule<MixedFusedLayerNormImpl, MixedFusedLayerNormOptions>;
template class NormModule<MixedFusedRMSNormImpl, MixedFusedRMSNormOptions>;

}  // namespace detail

at::Tensor FusedLayerNormImpl::forward(const at::Tensor& input) {
  const auto& shape = options.normalized_shape();
  if (!weight.defined()) return fused_layer_norm(input, shape, options.eps(), options.memory_efficient());
  return fused_layer_norm_affine(input, weight, bias, shape, options.eps(), options.memory_efficient());
}

at::Tensor FusedRMSNormImpl::forward(const at::Tensor& input) {
  const auto& shape = options.normalized_shape();
  if (!weight.defined()) return fused_rms_norm(input, shape, options.eps(), options.memory_efficient());
  return fused_rms_norm_affine(input, weight, shape, options.eps(), options.memory_efficient());
}

at::Tensor MixedFusedLayerNormImpl::forward(const at::Tensor& input) {
  return mixed_dtype_fused_layer_norm_affine(input, weight, bias, options.normalized_shape(), options.eps(),
                                             options.memory_efficient());
}

at::Tensor MixedFusedRMSNormImpl::forward(const at::Tensor& input) {
  return mixed_dtype_fused_rms_norm_affine(input, weight, options.normalized_shape(), options.eps(),
                                           options.memory_efficient());
}

}  // namespace apex::normalization
