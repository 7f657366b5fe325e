#include <apex_cpp/amp/float8/history.h>

#include "kernels/float8/float8.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <utility>

namespace apex::amp::detail {
namespace {

at::Tensor element(const at::Tensor& row, Float8Role role) { return row.narrow(0, static_cast<int64_t>(role), 1); }

// Backward passes of several threads may have a weight in common. Writes to the magnitudes of all histories take turns.
std::mutex& of_magnitudes() {
  static std::mutex instance;
  return instance;
}

void record(const at::Tensor& row, Float8Role role, const at::Tensor& largest) {
  at::Tensor recorded = element(row, role);
  const at::Tensor here = largest.to(row.device());
  const std::lock_guard<std::mutex> lock(of_magnitudes());
  at::maximum_out(recorded, recorded, here);
}

}  // namespace

kernels::Float8 kernels_format(Float8Format format) {
  return format == Float8Format::e5m2 ? kernels::Float8::e5m2 : kernels::Float8::e4m3;
}

kernels::Float8Values round_delayed(const at::Tensor& operand, Float8Role role, Float8Format format,
                                    const Float8Delays& delays) {
  const auto rounded =
      kernels::round_to_float8_with(operand, kernels_format(format), element(delays.scales, role).to(operand.device()));
  if (delays.largest.defined()) record(delays.largest, role, rounded.largest);
  return rounded.rounded;
}

namespace {

constexpr int64_t kGroup = 32;  // kGroup * kGroup rows are kPasses
static_assert(kGroup * kGroup == Float8History::kPasses);

struct RepeatedPass {
  const Float8History* history = nullptr;
  Float8History::Scales scales;
};

RepeatedPass& repeated_pass() {
  thread_local RepeatedPass instance;
  return instance;
}

Float8History::Scales by_weight(const at::Tensor& scales) {
  return std::make_shared<const std::vector<at::Tensor>>(scales.unbind());
}

at::Tensor index_of(const Float8History::Rows& rows, const at::Tensor& like) {
  return at::tensor(rows, at::kLong).to(like.device());
}

}  // namespace

Float8History::Float8History(std::vector<std::string> parameters, c10::Device device, Float8Format gradients)
    : parameters_(std::move(parameters)), gradients_(gradients) {
  for (size_t i = 0; i < parameters_.size(); ++i) rows_.emplace(parameters_[i], static_cast<int64_t>(i));
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const auto count = static_cast<int64_t>(parameters_.size());
  history_ = at::zeros({kPasses, count, kFloat8Roles}, options);
  groups_ = at::zeros({kGroup, count, kFloat8Roles}, options);
  largest_ = at::zeros({count, kFloat8Roles}, options);
  largest_of_ = largest_.unbind();
  scales_ = by_weight(at::zeros_like(largest_));
}

std::optional<int64_t> Float8History::row_of(const std::string& parameter) const {
  const auto found = rows_.find(parameter);
  return found == rows_.end() ? std::nullopt : std::make_optional(found->second);
}

Float8Delays Float8History::of(const std::string& parameter) const {
  const auto row = row_of(parameter);
  if (!row) return {};
  const RepeatedPass& repeated = repeated_pass();
  const Scales in_force = repeated.history == this ? repeated.scales : scales();
  const auto at = static_cast<size_t>(*row);
  return {(*in_force)[at], at::GradMode::is_enabled() ? largest_of_[at] : at::Tensor()};
}

Float8History::Scales Float8History::scales() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return scales_;
}

at::Tensor Float8History::largest(const Rows& rows) const {
  const std::lock_guard<std::mutex> lock(of_magnitudes());
  return rows.size() == parameters_.size() ? largest_.clone() : largest_.index_select(0, index_of(rows, largest_));
}

void Float8History::end_pass(const Rows& rows, const at::Tensor& largest) {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  const at::Tensor finite = at::where(at::isfinite(largest), largest, at::zeros_like(largest));
  const int64_t next = passes_++ % kPasses, group = next / kGroup;
  at::Tensor written = history_[next];
  if (rows.size() == parameters_.size()) {
    written.copy_(finite);
  } else {
    written.zero_().index_copy_(0, index_of(rows, written), finite);
  }
  groups_[group].copy_(history_.narrow(0, group * kGroup, kGroup).amax(0));
  update_scales();
  forget_rows(rows);
}

void Float8History::forget_pass(const Rows& rows) {
  const at::NoGradGuard no_grad;
  forget_rows(rows);
}

void Float8History::forget_rows(const Rows& rows) {
  const std::lock_guard<std::mutex> lock(of_magnitudes());
  if (rows.size() == parameters_.size()) {
    largest_.zero_();
  } else {
    largest_.index_fill_(0, index_of(rows, largest_), 0);
  }
}

void Float8History::update_scales() {
  const at::Tensor largest = groups_.amax(0);
  const auto gradient = static_cast<int64_t>(Float8Role::gradient);
  const at::Tensor scales = at::cat({kernels::float8_scales(largest.narrow(1, 0, gradient), kernels::Float8::e4m3),
                                     kernels::float8_scales(largest.narrow(1, gradient, 1), kernels_format(gradients_))},
                                    1);
  scales_ = by_weight(at::where(largest.gt(0), scales, at::zeros_like(scales)));
}

at::Tensor Float8History::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (passes_ <= kPasses) return history_.narrow(0, 0, passes_).to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  return history_.roll(-(passes_ % kPasses), 0).cpu();
}

void Float8History::check(const at::Tensor& state, size_t count) {
  TORCH_INTERNAL_ASSERT(state.defined());
  TORCH_CHECK_VALUE(state.scalar_type() == at::kFloat && state.dim() == 3 && state.size(0) <= kPasses &&
                        state.size(1) == static_cast<int64_t>(count) && state.size(2) == kFloat8Roles,
                    "the FP8 history is ", state.scalar_type(), " of the shape ", state.sizes(),
                    ", expected Float of [passes, ", count, ", ", kFloat8Roles, "] with at most ", kPasses,
                    " passes. Load it into a model with the weights of the saved one.");
  TORCH_CHECK_VALUE(at::logical_and(at::isfinite(state), state.ge(0)).all().item<bool>(),
                    "the FP8 history has magnitudes that are negative, Inf or NaN.");
}

void Float8History::load(const at::Tensor& state) {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  history_.zero_().narrow(0, 0, state.size(0)).copy_(state);
  groups_.copy_(history_.view({kGroup, kGroup, -1, kFloat8Roles}).amax(1));
  passes_ = state.size(0);
  update_scales();
  const std::lock_guard<std::mutex> lock_of_magnitudes(of_magnitudes());
  largest_.zero_();
}

std::string restore_float8_history(Float8History* history, const at::Tensor& saved, bool is_of_same_weights) {
  if (!history) return saved.defined() ? "The saved FP8 history is not used without fp8 delayed." : "";
  if (saved.defined() && is_of_same_weights) {
    history->load(saved);
    return "";
  }
  history->load(at::empty({0, static_cast<int64_t>(history->parameters().size()), kFloat8Roles}));
  return std::string(saved.defined() ? "The saved FP8 history is of other weights and is not used"
                                     : "No FP8 history was saved") +
         "; scales come from each tensor's own values until the next pass.";
}

UseFloat8Scales::UseFloat8Scales(const Float8History* history, Float8History::Scales scales)
    : history_before_(repeated_pass().history), scales_before_(repeated_pass().scales) {
  if (history) repeated_pass() = {history, std::move(scales)};
}

UseFloat8Scales::~UseFloat8Scales() { repeated_pass() = {history_before_, std::move(scales_before_)}; }

}  // namespace apex::amp::detail
