#include <apex_cpp/amp/torch_amp/custom_function.h>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <apex_cpp/amp/casts/node_ranges.h>

namespace apex::amp::detail {
namespace {

std::string key_for(DeviceTypeArg device_type) { return "apex::amp::autocast." + device_type.name(); }

/// Rules as a context can keep them.
struct RulesHolder : torch::CustomClassHolder {
  explicit RulesHolder(std::shared_ptr<const CastRules> kept) : rules(std::move(kept)) {}
  std::shared_ptr<const CastRules> rules;  // null: amp cast nothing
};

const c10::ivalue::TupleElements& kept_casts(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type) {
  const auto saved = ctx->saved_data.find(key_for(device_type));
  TORCH_CHECK(saved != ctx->saved_data.end(), "amp::custom_bwd for '", device_type.name(),
              "': the forward kept no state. Wrap it in amp::custom_fwd for the same device type.");
  return saved->second.toTupleRef().elements();
}

}  // namespace

void keep_casts(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type, bool those_around) {
  const bool enabled = those_around && is_autocast_enabled(device_type);
  const auto dtype = static_cast<int64_t>(get_autocast_dtype(device_type));
  const auto rules = c10::make_intrusive<RulesHolder>(those_around ? listed_casts_in_force() : nullptr);
  ctx->saved_data[key_for(device_type)] =
      c10::ivalue::Tuple::create(c10::IValue(enabled), c10::IValue(dtype), c10::IValue::make_capsule(rules));
  nodes_with_custom_fwd().add(NodeRanges::next_node() - 1);  // the function's: it is made just before its forward is called
}

KeptCasts::KeptCasts(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type)
    : torch_casts_(device_type, static_cast<c10::ScalarType>(kept_casts(ctx, device_type)[1].toInt()),
                   kept_casts(ctx, device_type)[0].toBool()) {
  const auto holder = c10::static_intrusive_pointer_cast<RulesHolder>(kept_casts(ctx, device_type)[2].toCapsule());
  if (holder->rules) {
    amp_casts_.emplace(holder->rules);
  } else {
    no_casts_.emplace();
  }
}

bool are_listed_casts_on() { return listed_casts_in_force() != nullptr; }

at::Tensor cast_eligible(const at::Tensor& tensor, std::optional<DeviceTypeArg> device_type, c10::ScalarType dtype) {
  const bool eligible = tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble &&
                        (!device_type || tensor.device().type() == *device_type);
  return eligible ? tensor.to(dtype) : tensor;
}

}  // namespace apex::amp::detail
