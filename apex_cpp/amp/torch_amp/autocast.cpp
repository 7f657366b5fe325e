#include <apex_cpp/amp/torch_amp/autocast.h>

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include <apex_cpp/amp/torch_amp/lstm_check.h>

namespace apex::amp {
namespace {

/// Whether casts can be had; tells why not. A CUDA device takes any dtype: what it has no units for, it emulates.
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
  // torch's cache knows a cast by its weight alone, not by its dtype.
  if (changes_dtype_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, state.enabled);
  at::autocast::set_autocast_dtype(device_type_, state.dtype);
  at::autocast::set_autocast_cache_enabled(state.cache_enabled);
}

bool is_autocast_enabled(DeviceTypeArg device_type) { return at::autocast::is_autocast_enabled(device_type); }

c10::ScalarType get_autocast_dtype(DeviceTypeArg device_type) { return at::autocast::get_autocast_dtype(device_type); }

}  // namespace apex::amp
