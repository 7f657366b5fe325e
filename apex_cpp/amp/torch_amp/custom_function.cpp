#include <apex_cpp/amp/torch_amp/custom_function.h>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

namespace apex::amp::detail {
namespace {

std::string key_for(DeviceTypeArg device_type) { return "apex::amp::autocast." + device_type.name(); }

}  // namespace

void save_autocast(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type, bool enabled) {
  const auto dtype = static_cast<int64_t>(get_autocast_dtype(device_type));
  ctx->saved_data[key_for(device_type)] = c10::IValue(std::make_tuple(enabled, dtype));
}

autocast saved_autocast(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type) {
  const auto saved = ctx->saved_data.find(key_for(device_type));
  TORCH_CHECK(saved != ctx->saved_data.end(), "amp::custom_bwd for '", device_type.name(),
              "': the forward kept no state. Wrap it in amp::custom_fwd for the same device type.");
  const auto& state = saved->second.toTupleRef().elements();
  return autocast(device_type, static_cast<c10::ScalarType>(state[1].toInt()), state[0].toBool());
}

at::Tensor cast_eligible(const at::Tensor& tensor, DeviceTypeArg device_type, c10::ScalarType dtype) {
  const bool eligible = tensor.defined() && tensor.is_floating_point() && tensor.device().type() == device_type &&
                        tensor.scalar_type() != at::kDouble;
  return eligible ? tensor.to(dtype) : tensor;
}

}  // namespace apex::amp::detail
