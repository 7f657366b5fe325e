#include "training/torch_amp.h"

#include <cmath>

namespace train {
namespace {

namespace amp = apex::amp;

std::optional<c10::ScalarType> dtype_of(const TorchAmpConfig& config) {
  if (config.autocast == "none") return std::nullopt;
  return config.autocast == "float16" ? at::kHalf : at::kBFloat16;
}

amp::GradScaler scaler_for(const TorchAmpConfig& config, at::Device device) {
  return amp::GradScaler(amp::GradScalerOptions()
                             .device(device.type())
                             .init_scale(static_cast<float>(config.init_scale))  // as it will be kept
                             .growth_factor(config.growth_factor)
                             .backoff_factor(config.backoff_factor)
                             .growth_interval(config.growth_interval));
}

}  // namespace

TorchAmp::TorchAmp(const TorchAmpConfig& config, at::Device device) : device_type_(device.type()), dtype_(dtype_of(config)) {
  if (config.grad_scaler) scaler_.emplace(scaler_for(config, device));
}

amp::autocast TorchAmp::autocast() const { return amp::autocast(device_type_, dtype_, /*enabled=*/dtype_.has_value()); }

std::optional<amp::ScaleEvent> scale_event(double before, double after) {
  if (before == after) return std::nullopt;
  amp::ScaleEvent event;
  event.before = before;
  event.after = after;
  event.change = after < before ? amp::ScaleChange::overflow : amp::ScaleChange::growth;
  return event;
}

amp::StepResult result_of_step(const torch::nn::Module& net, double loss, double before, double after) {
  amp::StepResult result;
  result.loss_scale = result.loss_scale_after = after;
  result.loss_scale_before = before;
  result.skipped = after < before;
  if (!result.skipped) return result;
  result.nonfinite_loss = !std::isfinite(loss);
  for (const auto& record : amp::grad_statistics(net)) {
    if (record.inf + record.nan == 0) continue;
    result.first_nonfinite = record.name;
    result.inf_count = record.inf;
    result.nan_count = record.nan;
    break;
  }
  return result;
}

}  // namespace train
