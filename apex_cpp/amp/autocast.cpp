#include <apex_cpp/amp/autocast.h>

#include <apex_cpp/amp/casts/custom_functions.h>

#include <ATen/Context.h>
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/cuda.h>
#include <torch/library.h>

namespace apex::amp {
namespace {

c10::DeviceType type_named(const std::string& name) {
  const c10::Device device(name);
  TORCH_CHECK(!device.has_index(), "A device type was given as '", name, "'. Leave the index out: it holds for every device '",
              c10::DeviceTypeName(device.type(), true), "'.");
  return device.type();
}

}  // namespace

DeviceTypeArg::DeviceTypeArg(const std::string& name) : type_(type_named(name)) {}

std::string DeviceTypeArg::name() const { return c10::DeviceTypeName(type_, /*lower_case=*/true); }

namespace {

/// Whether casts are possible; warns if not. A CUDA device supports any dtype, by emulation if need be.
bool supports(DeviceTypeArg device_type, c10::ScalarType dtype) {
  if (device_type == c10::kCUDA) {
    const bool available = torch::cuda::is_available();
    if (!available) {
      TORCH_WARN_ONCE("amp::autocast(\"cuda\") casts nothing: there is no CUDA device. Give \"cpu\" to cast on the CPU.");
    }
    return available;
  }
  const bool known = dtype == at::kBFloat16 || dtype == at::kHalf;
  if (!known) {
    TORCH_WARN_ONCE("amp::autocast(\"", device_type.name(), "\", ", dtype, ") casts nothing: on this device it supports ",
                    at::kBFloat16, " and ", at::kHalf, ". Give one of these.");
  }
  return known;
}

}  // namespace

autocast::autocast(DeviceTypeArg device_type, std::optional<c10::ScalarType> dtype, bool enabled,
                   std::optional<bool> cache_enabled)
    : device_type_(device_type) {
  TORCH_CHECK(at::autocast::is_autocast_available(device_type_), "amp::autocast: torch has no autocast for the device type '",
              device_type.name(), "'. Use \"cuda\" or \"cpu\".");
  before_ = current(device_type_);
  State wanted{enabled, dtype.value_or(before_.dtype), cache_enabled.value_or(before_.cache_enabled)};
  wanted.enabled = enabled && supports(device_type, wanted.dtype);
  changes_dtype_ = wanted.dtype != before_.dtype;
  if (wanted.enabled && device_type_ == c10::kCPU) detail::check_lstm_under_autocast();
  at::autocast::increment_nesting();
  enter(wanted);
}

autocast::~autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  enter(before_);
}

autocast::State autocast::current(c10::DeviceType device_type) {
  return {at::autocast::is_autocast_enabled(device_type), at::autocast::get_autocast_dtype(device_type),
          at::autocast::is_autocast_cache_enabled()};
}

void autocast::enter(const State& state) const {
  // LibTorch's cache identifies a cast by its weight, not by its dtype.
  if (changes_dtype_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, state.enabled);
  at::autocast::set_autocast_dtype(device_type_, state.dtype);
  at::autocast::set_autocast_cache_enabled(state.cache_enabled);
}

bool is_autocast_enabled(DeviceTypeArg device_type) { return at::autocast::is_autocast_enabled(device_type); }

c10::ScalarType get_autocast_dtype(DeviceTypeArg device_type) { return at::autocast::get_autocast_dtype(device_type); }

}  // namespace apex::amp

namespace apex::amp::detail {
namespace {

using Lstm = at::_ops::lstm_input;
constexpr auto kKey = c10::DispatchKey::AutocastCPU;  // LibTorch registers no kernel for the operator here
constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

bool onednn_has(c10::ScalarType dtype) {
  const char* op = dtype == at::kHalf ? "mkldnn::_is_mkldnn_fp16_supported" : "mkldnn::_is_mkldnn_bf16_supported";
  return c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<bool()>().call();
}

// Whether LibTorch passes the call to oneDNN; autocast then casts its arguments to 16 bits.
bool goes_to_onednn(const at::Tensor& input, at::TensorList states) {
  const bool has_projection = states.size() == 2 && states[0].size(-1) != states[1].size(-1);
  return at::globalContext().userEnabledMkldnn() && input.is_cpu() && input.scalar_type() == at::kFloat && input.numel() > 0 &&
         !has_projection;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> run_lstm(c10::DispatchKeySet keys, const at::Tensor& input,
                                                        at::TensorList states, at::TensorList params, bool has_biases,
                                                        int64_t num_layers, double dropout, bool train, bool bidirectional,
                                                        bool batch_first) {
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !goes_to_onednn(input, states) || onednn_has(dtype), "aten::lstm under autocast: oneDNN has no ", dtype,
      " LSTM for this CPU, which is without AVX512, and LibTorch gives it every LSTM with Float input (here of shape ",
      input.sizes(),
      "). Give the LSTM BFloat16 input, x.to(torch::kBFloat16); or train at amp::initialize's level O4 or O5 in "
      "place of amp::autocast.");
  return Lstm::redispatch(keys & kBelow, input, states, params, has_biases, num_layers, dropout, train, bidirectional,
                          batch_first);
}

}  // namespace

void check_lstm_under_autocast() {
  if (onednn_has(at::kBFloat16)) return;
  static const torch::Library library = [] {
    torch::Library aten(torch::Library::IMPL, "aten", kKey, __FILE__, static_cast<uint32_t>(__LINE__));
    aten.impl("lstm.input", TORCH_FN(run_lstm));
    return aten;
  }();
}

namespace {

std::string key_for(DeviceTypeArg device_type) { return "apex::amp::autocast." + device_type.name(); }

/// Holds cast rules in an autograd context.
struct RulesHolder : torch::CustomClassHolder {
  explicit RulesHolder(std::shared_ptr<const CastRules> kept) : rules(std::move(kept)) {}
  std::shared_ptr<const CastRules> rules;  // null: amp cast nothing
};

const c10::ivalue::TupleElements& kept_casts(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type) {
  const auto saved = ctx->saved_data.find(key_for(device_type));
  TORCH_CHECK(saved != ctx->saved_data.end(), "amp::custom_bwd for '", device_type.name(),
              "': the forward pass saved no state. Wrap the forward function in amp::custom_fwd for the same device type.");
  return saved->second.toTupleRef().elements();
}

}  // namespace

void keep_casts(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type, bool those_around) {
  const bool enabled = those_around && is_autocast_enabled(device_type);
  const auto dtype = static_cast<int64_t>(get_autocast_dtype(device_type));
  const auto rules = c10::make_intrusive<RulesHolder>(those_around ? listed_casts_in_force() : nullptr);
  ctx->saved_data[key_for(device_type)] =
      c10::ivalue::Tuple::create(c10::IValue(enabled), c10::IValue(dtype), c10::IValue::make_capsule(rules));
  nodes_with_custom_fwd().add(NodeRanges::next_node() - 1);  // the function's node, created just before its forward
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
