#include <apex_cpp/amp/scaling/overflow_report.h>

#include <apex_cpp/amp/tensors/convert_network.h>

#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <utility>

namespace apex::amp::detail {
namespace {

// "'fc.weight'", or a description such as "the parameter of shape [2, 3]".
std::string parameter_text(const std::string& parameter) {
  return parameter.find(' ') == std::string::npos ? "'" + parameter + "'" : "the parameter " + parameter;
}

std::string cause_of_nonfinite_loss(const Overflow& overflow) {
  const char* of_half =
      "Activations above 65504 are Inf in FP16: amp::Doctor (tools/compare doctor) finds the layer to keep in FP32; O4 and O5 "
      "compute in BF16, which holds them. ";
  return std::string("The loss itself is Inf or NaN: no loss scale helps. ") + (overflow.in_half ? of_half : "") +
         "Look for such values in the input, and for a division, log or square root in the forward pass.";
}

std::string cause_of_nonfinite_grad(const LossScaler& scaler) {
  const bool may_be_too_large = !scaler.dynamic() && scaler.loss_scale() > 1;
  return std::string("The loss is finite. ") +
         (may_be_too_large ? "The loss scale is fixed: try a lower one, or \"dynamic\", which finds one. " : "") +
         "Lower the learning rate if the loss rises; drop gradients of earlier passes, which had another loss scale, with "
         "zero_grad(); look for a backward pass that makes NaN (a square root or a norm at 0).";
}

std::string likely_cause(const LossScaler& scaler, const Overflow& overflow) {
  return overflow.nonfinite_loss ? cause_of_nonfinite_loss(overflow) : cause_of_nonfinite_grad(scaler);
}

// Describes the finite values: the largest, and the share that underflows to subnormal.
void describe_values(const NonfiniteGrad& grad, std::ostream& text) {
  const TensorStatistics& found = *grad.statistics;
  if (found.inf + found.nan == found.numel) {
    text << "; none of its values is finite";
    return;
  }
  text << "; its finite values reach " << found.abs_max;
  if (!is_low_precision(grad.dtype)) return;
  const Underflow underflow = found.underflow(1, grad.dtype);
  text << ", and " << 100 * (underflow.subnormal_share) << " % of its nonzero values are subnormal in " << grad.dtype;
}

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() > 1 ? "ranks" : "rank";
  for (const int rank : ranks) text += " " + std::to_string(rank);
  return text;
}

bool has_nonfinite(const at::Tensor& tensor) { return !at::isfinite(tensor).all().item<bool>(); }

FirstNonfinite first_nonfinite(std::vector<TensorStatistics> of_grads) {
  FirstNonfinite first;
  for (size_t i = 0; i < of_grads.size(); ++i) {
    TensorStatistics& found = of_grads[i];
    if (found.inf + found.nan == 0 || ++first.grad.grads > 1) continue;
    first.index = i;
    first.grad.parameter = found.name;
    first.grad.inf_count = found.inf, first.grad.nan_count = found.nan, first.grad.numel = found.numel;
    first.grad.statistics = std::move(found);
  }
  return first;
}

std::string describe(const NonfiniteGrad& grad) {
  if (!grad.found() && !grad.ranks.empty())
    return "every gradient is finite on this rank, but not on " + ranks_text(grad.ranks);
  if (!grad.found()) return "every gradient is finite, but its unscaled value is not";
  std::ostringstream text;
  text << grad.inf_count << " Inf and " << grad.nan_count << " NaN among the " << grad.numel << " values of the gradient of "
       << parameter_text(grad.parameter);
  if (!grad.ranks.empty()) text << " (from " << ranks_text(grad.ranks) << ")";
  if (grad.is_reduced && grad.ranks.empty()) text << " (finite on every rank, and only their sum is not)";
  if (grad.grads > 1) text << ", the first of " << grad.grads << " such gradients";
  if (grad.statistics) describe_values(grad, text);
  return text.str();
}

void warn_of_skips(const LossScaler& scaler, const Overflow& overflow) {
  TORCH_WARN("amp: ", scaler.skipped_in_a_row(), " steps in a row overflowed on loss scaler ", overflow.loss_id,
             " (its loss scales: ", scaler.describe_history(), "). First found: ", describe(overflow.grad), ". ",
             likely_cause(scaler, overflow), scaler.dynamic() ? " min_loss_scale sets a lower bound of the scale." : "",
             " amp::loss_scaler(", overflow.loss_id, ").set_skip_warning(n) changes the number of steps.");
}

namespace {

using SharedExchange = std::shared_ptr<const OverflowExchange>;

struct LivingExchanges {
  std::mutex mutex;
  std::vector<SharedExchange> exchanges;  // the newest last
};

LivingExchanges& living_exchanges() {
  static LivingExchanges instance;
  return instance;
}

// A block on another thread may use an exchange that ends meanwhile.
SharedExchange exchange_in_force() {
  auto& living = living_exchanges();
  const std::lock_guard<std::mutex> lock(living.mutex);
  return living.exchanges.empty() ? nullptr : living.exchanges.back();
}

}  // namespace

SharedExchange begin_overflow_exchange(OverflowExchange exchange) {
  auto begun = std::make_shared<const OverflowExchange>(std::move(exchange));
  auto& living = living_exchanges();
  const std::lock_guard<std::mutex> lock(living.mutex);
  living.exchanges.push_back(begun);
  return begun;
}

void end_overflow_exchange(const SharedExchange& exchange) {
  auto& living = living_exchanges();
  const std::lock_guard<std::mutex> lock(living.mutex);
  const auto found = std::find(living.exchanges.begin(), living.exchanges.end(), exchange);
  if (found != living.exchanges.end()) living.exchanges.erase(found);
}

std::vector<int> ranks_with_overflow(const LossScaler& scaler, bool found_here) {
  if (!scaler.checks_overflow()) return {};
  const SharedExchange exchange = exchange_in_force();
  return exchange ? (*exchange)(found_here) : std::vector<int>{};
}

}  // namespace apex::amp::detail
