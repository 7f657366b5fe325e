#include "tests/state_machine/literal_amp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/state_machine/program.h"

namespace apex::test {
namespace {

float rounded(double value, int digits, int least_exponent, double largest) {
  if (!std::isfinite(value) || value == 0) return static_cast<float>(value);
  const int exponent = std::max(std::ilogb(value), least_exponent);
  const double quantum = std::ldexp(1.0, exponent - digits);
  const double nearest = std::nearbyint(value / quantum) * quantum;
  if (std::abs(nearest) > largest) return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value));
  return static_cast<float>(nearest);
}

}  // namespace

float round_to_half(double value) { return rounded(value, 10, -14, 65504.0); }
float round_to_bfloat16(double value) { return rounded(value, 7, -126, 255.0 * std::ldexp(1.0, 120)); }

LiteralAmp::LiteralAmp(const Config& config) : config_(config) {
  optimizers_[0].params = {0, 1, 3};
  optimizers_[1].params = {2, 4};
  for (int i = 0; i < kParams; ++i) state_.params[i].values = initial_values(i);
  ScalerState scaler;
  scaler.scale = config.dynamic ? std::min(config.max_scale, 65536.0) : config.static_scale;  // SCALE-01
  state_.scalers.assign(config.losses, scaler);
  for (auto& step : state_.steps) step.loss_scale = scaler.scale;
}

LiteralAmp::Type LiteralAmp::type_of(int param) const {
  if (!is_cast(param)) return Type::single;
  if (config_.level == "O2" || config_.level == "O3") return Type::half;
  return config_.level >= "O5" ? Type::bfloat16 : Type::single;
}

bool LiteralAmp::in_fused_order(const Optimizer& optimizer) const {
  return has_masters(config_) && config_.kind == OptimizerKind::fused_sgd_in_fused_order && !optimizer.materialized;
}

// MW-01..06, MW-08. apex_cpp: a parameter that is unfrozen later is sorted by the next call.
void LiteralAmp::lazy_init(Optimizer& optimizer) {
  for (const int param : optimizer.params) {
    if (optimizer.is_sorted[param] || (has_masters(config_) && frozen_[param])) continue;
    optimizer.is_sorted[param] = true;
    if (type_of(param) == Type::single) {
      optimizer.floats.push_back(param);
      if (has_masters(config_) && !optimizer.lazy_init_called) state_.params[param].grad = {};
      continue;
    }
    optimizer.halves.push_back(param);
    if (!has_masters(config_)) continue;
    state_.has_master[param] = true;
    state_.masters[param].values = state_.params[param].values;
  }
  optimizer.lazy_init_called = true;
}

void LiteralAmp::apply(const Event& event) {
  state_.threw = false;
  Optimizer& optimizer = optimizers_[event.optimizer];
  switch (event.kind) {
    case Event::backward:
      return backward(event);
    case Event::plain_backward:
      for (int i = 0; i < kParams; ++i) {
        if (!takes_plain_gradients(config_, i) || frozen_[i]) continue;
        accumulate(i, event.derivatives[i], 1.0);
        for (Optimizer& each : optimizers_) each.added[i] = each.added[i] && !event.derivatives[i].defined;
      }
      return;
    case Event::step:
      return step(event.optimizer);
    case Event::zero_grad:
      return zero_grad(optimizer, event.set_to_none);
    case Event::model_zero_grad:
      return model_zero_grad(event.set_to_none);
    case Event::add_group:
      return add_group(optimizer, event.param);
    case Event::load_state:
      if (is_newest_) load_state(event);
      return;
    case Event::save_state:
      if (!is_newest_) return;
      saved_.emplace();
      for (const auto& scaler : state_.scalers) saved_->emplace_back(scaler.scale, scaler.unskipped);  // SD-01
      return;
    case Event::materialize:
      return materialize(optimizer);
    case Event::initialize:
      return initialize_again(*event.again);
    case Event::bystander:
      is_newest_ = false;  // apex_cpp: another model's session changes nothing else
      return;
    case Event::freeze:
      frozen_[event.param] = event.on;
      return;
  }
}

// INIT-11, BUG-07. apex_cpp: casts do not stack. What amp cast to 16 bits begins anew with its values, and without a gradient.
void LiteralAmp::initialize_again(const Config& config) {
  const LiteralAmp before = *this;
  *this = LiteralAmp(config);
  saved_ = before.saved_;
  frozen_ = before.frozen_;
  for (int i = 0; i < kParams; ++i) {
    Weight& weight = state_.params[i] = before.state_.params[i];
    weight.values = scaled(weight.values, 1, type_of(i));
    weight.grad.values = scaled(weight.grad.values, 1, type_of(i));
    if (before.type_of(i) != Type::single) weight.grad = {};
  }
}

// ---- a scale_loss block ----

bool LiteralAmp::takes_part(const Event& event, int param) const {
  if (frozen_[param]) return false;
  for (int i = 0; i < kOptimizers; ++i) {
    const auto& params = optimizers_[i].params;
    if ((event.optimizers & (1 << i)) && std::find(params.begin(), params.end(), param) != params.end()) return true;
  }
  return false;
}

void LiteralAmp::accumulate(int param, const Gradient& derivative, double scale) {
  if (!derivative.defined) return;
  Gradient& grad = state_.params[param].grad;
  const Type type = type_of(param);
  const Values fresh = scaled(derivative.values, scale, type);
  grad.values = grad.defined ? axpby(1, grad.values, 1, fresh, type) : fresh;
  grad.defined = true;
}

void LiteralAmp::backward(const Event& event) {
  is_newest_ = is_newest_ && !event.bystander_level;
  const ScalerState& scaler = state_.scalers[event.loss];
  const bool short_cut = !has_masters(config_) && !config_.dynamic && scaler.scale == 1.0;  // SL-04
  if (!short_cut) {
    each_listed(event, [&](Optimizer& optimizer, auto&) { lazy_init(optimizer); });
    each_listed(event, [&](Optimizer& optimizer, auto&) {
      optimizer.block_scale = scaler.scale;
      optimizer.added = {};
      optimizer.params_have_scaled_gradients ? put_waiting_aside(optimizer) : prepare(optimizer);  // SL-05
    });
  }
  for (int i = 0; i < kParams; ++i) {
    if (takes_part(event, i)) accumulate(i, event.derivatives[i], scaler.scale);  // SL-06
  }
  if (!short_cut) end_block(event);
}

void LiteralAmp::end_block(const Event& event) {
  each_listed(event, [](Optimizer& optimizer, auto&) { optimizer.after_block = true; });
  if (event.throws) {  // SL-14, apex_cpp: earlier gradients come back
    return each_listed(event, [&](Optimizer& optimizer, auto&) { abandon(optimizer); });
  }
  if (event.delay_unscale) {  // SL-07
    return each_listed(event, [&](Optimizer& optimizer, auto&) {
      join_waiting(optimizer, state_.scalers[event.loss].scale);
      optimizer.params_have_scaled_gradients = true;
      optimizer.waiting_scale = state_.scalers[event.loss].scale;
    });
  }
  ScalerState& scaler = state_.scalers[event.loss];
  const double scale_before = scaler.scale;
  overflow_ = false;  // SL-08, SCALE-04
  each_listed(event, [&](Optimizer& optimizer, auto&) {
    join_waiting(optimizer, scaler.scale);
    post(optimizer, scaler);
    optimizer.params_have_scaled_gradients = false;
  });
  const bool should_skip = !event.delay_overflow_check && update_scale(scaler);  // SL-10
  if (state_.threw) {  // BUG-03, apex_cpp: an error in place of a scale of 0
    return each_listed(event, [&](Optimizer& optimizer, auto&) { zero_grad(optimizer, /*set_to_none=*/true); });
  }
  each_listed(event, [&](Optimizer& optimizer, StepState& result) {
    result.loss_scale = scaler.scale;
    if (should_skip && !optimizer.skip) optimizer.skip = Skip{event.loss, scale_before};  // SL-11, SL-16
  });
}

// PORT: gradients that were zeroed in the model become zeros in the masters, and dropped ones are dropped. If the model has
// none left, gradients of earlier passes are dropped too.
void LiteralAmp::follow_model(const Optimizer& optimizer) {
  if (!has_masters(config_) || in_fused_order(optimizer)) return;
  bool any_dropped = false;
  for (int param : optimizer.halves) {
    const Gradient& grad = state_.params[param].grad;
    Gradient& master = state_.masters[param].grad;
    if (!master.defined || !marked_[param] || (grad.defined && !zeroed_[param])) continue;
    master = {grad.defined, {}};
    marked_[param] = grad.defined;
    zeroed_[param] = false;
    any_dropped = true;
  }
  const auto has_values = [&](int param) { return state_.params[param].grad.values != Values{}; };
  if (!any_dropped || std::any_of(optimizer.params.begin(), optimizer.params.end(), has_values)) return;
  for (int param : optimizer.halves) {
    if (!marked_[param]) state_.masters[param].grad = {};
  }
}

void LiteralAmp::prepare(Optimizer& optimizer) {
  follow_model(optimizer);
  for (int param : optimizer.halves) {
    Gradient& grad = state_.params[param].grad;
    if (has_masters(config_) && !in_fused_order(optimizer)) {  // BWD-01
      grad = {};
      continue;
    }
    // BWD-02, BWD-03. apex_cpp: in the fused order gradients that a step has used do not come back.
    const bool used_up = has_masters(config_) && !optimizer.scale_set_by_backward;
    optimizer.stash[param] = used_up ? Gradient{} : grad;
    grad = {};
  }
  for (int param : optimizer.floats) optimizer.stash[param] = std::exchange(state_.params[param].grad, Gradient{});
}

// SL-09, apex_cpp: gradients of delayed passes wait beside the pass, so that the scale may change in between.
void LiteralAmp::put_waiting_aside(Optimizer& optimizer) {
  for (const auto* params : {&optimizer.halves, &optimizer.floats}) {
    for (int param : *params) optimizer.waiting[param] = std::exchange(state_.params[param].grad, Gradient{});
  }
}

void LiteralAmp::join_waiting(Optimizer& optimizer, double scale) {
  if (!optimizer.params_have_scaled_gradients) return;
  const double factor = scale / optimizer.waiting_scale;
  for (int param = 0; param < kParams; ++param) {
    const Gradient waiting = std::exchange(optimizer.waiting[param], Gradient{});
    Gradient& grad = state_.params[param].grad;
    if (!waiting.defined) continue;
    const Type type = type_of(param);
    grad.values = grad.defined ? axpby(1, grad.values, factor, waiting.values, type) : scaled(waiting.values, factor, type);
    grad.defined = true;
  }
}

void LiteralAmp::abandon(Optimizer& optimizer) {
  if (optimizer.params_have_scaled_gradients) {
    for (const auto* params : {&optimizer.halves, &optimizer.floats}) {
      for (int param : *params) state_.params[param].grad = std::exchange(optimizer.waiting[param], Gradient{});
    }
    return;
  }
  const bool drops_halves = has_masters(config_) && !in_fused_order(optimizer);
  for (int param : optimizer.halves) {
    Gradient stash = std::exchange(optimizer.stash[param], Gradient{});
    // PORT: zeros in the model, which it can drop, stand for the gradient that the master keeps.
    marked_[param] = drops_halves && state_.masters[param].grad.defined;
    zeroed_[param] = false;
    state_.params[param].grad = drops_halves ? Gradient{marked_[param], {}} : stash;
  }
  for (int param : optimizer.floats) state_.params[param].grad = std::exchange(optimizer.stash[param], Gradient{});
}

// ---- the scaler ----

bool LiteralAmp::update_scale(ScalerState& scaler) {
  if (config_.dynamic && overflow_) {  // SCALE-08
    double halved = scaler.scale / 2;
    if (config_.min_scale && *config_.min_scale != 0) halved = std::max(halved, *config_.min_scale);
    if (halved < std::ldexp(1.0, -126)) {
      state_.threw = true;
      return false;
    }
    ++scaler.updates;
    ++scaler.skipped_in_a_row;
    move(scaler, halved, 'o');
    scaler.unskipped = 0;
    return true;
  }
  ++scaler.updates;
  scaler.skipped_in_a_row = 0;
  ++scaler.unskipped;
  // SCALE-09. apex_cpp: a count past the window, which a saved state may have, lets the scale grow, too.
  if (config_.dynamic && scaler.unskipped >= config_.scale_window) {
    move(scaler, std::min(config_.max_scale, scaler.scale * 2), 'g');
    scaler.unskipped = 0;
  }
  return false;
}

void LiteralAmp::move(ScalerState& scaler, double scale, char change) {
  scaler.history.push_back({scaler.updates, scaler.scale, scale, change});
  if (scaler.history.size() > kHistory) scaler.history.erase(scaler.history.begin());
  scaler.scale = scale;
}

void LiteralAmp::load_state(const Event& event) {
  const auto& saved = event.saved.empty() ? saved_.value_or(std::vector<std::pair<double, int64_t>>{}) : event.saved;
  for (size_t i = 0; i < std::min(saved.size(), state_.scalers.size()); ++i) {    // SD-04, SD-05
    if (!config_.dynamic && saved[i].first != state_.scalers[i].scale) continue;  // apex_cpp: a static scale stays
    move(state_.scalers[i], saved[i].first, 'r');
    state_.scalers[i].unskipped = saved[i].second;
    state_.scalers[i].skipped_in_a_row = 0;
  }
  state_.threw = event.foreign_key && saved.size() <= state_.scalers.size();  // SD-06
  if (saved.empty()) return;
  for (Optimizer& optimizer : optimizers_) {  // apex_cpp: gradients are dropped, no step is skipped
    if (!optimizer.skip) continue;
    optimizer.skip.reset();
    zero_grad(optimizer, /*set_to_none=*/true);
  }
}

// ---- the optimizer ----

void LiteralAmp::step(int index) {
  Optimizer& optimizer = optimizers_[index];
  lazy_init(optimizer);  // OPT-08, apex_cpp
  // apex_cpp: a step by scaled gradients is an error.
  if (!optimizer.skip && (carries_scale(optimizer) || added_with_scaled_gradient(optimizer))) {
    state_.threw = true;
    return;
  }
  StepState result;
  result.loss_scale = state_.steps[index].loss_scale;
  if (optimizer.skip) {  // SL-12, BWD-40
    result.skipped = result.names_gradient = true;
    result.loss_id = optimizer.skip->loss_id;
    result.scale_before = optimizer.skip->scale_before;
    result.scale_after = state_.scalers[optimizer.skip->loss_id].scale;
    optimizer.skip.reset();
  } else {
    if (!optimizer.params_have_scaled_gradients) follow_model(optimizer);
    const bool fused_order = in_fused_order(optimizer);
    const double factor = fused_order ? 1 / optimizer.most_recent_scale : 1;
    for (int param : optimizer.params) {
      Weight& model = state_.params[param];
      Weight& master = state_.masters[param];
      if (!state_.has_master[param]) {
        step_param(param, model, type_of(param), model.grad, factor);
        continue;
      }
      const bool in_model = fused_order && optimizer.scale_set_by_backward;
      step_param(param, master, Type::single, in_model ? model.grad : master.grad, factor);
      model.values = scaled(master.values, 1, type_of(param));  // OPT-07
    }
  }
  state_.steps[index] = result;
  for (int param : optimizer.halves) state_.masters[param].grad = {};  // OPT-05
  optimizer.scale_set_by_backward = false;
  optimizer.after_block = false;
  if (!optimizer.params_have_scaled_gradients) optimizer.materialized = false;
}

bool LiteralAmp::carries_scale(const Optimizer& optimizer) const {
  const auto has_grad = [&](int param) { return state_.params[param].grad.defined; };
  return optimizer.params_have_scaled_gradients && (std::any_of(optimizer.halves.begin(), optimizer.halves.end(), has_grad) ||
                                                    std::any_of(optimizer.floats.begin(), optimizer.floats.end(), has_grad));
}

// APG-02. The gradient may be of the block, which has not unscaled it. In the fused order the step unscales it.
bool LiteralAmp::added_with_scaled_gradient(const Optimizer& optimizer) const {
  const bool reads_as_is = !optimizer.params_have_scaled_gradients && !in_fused_order(optimizer);
  if (!optimizer.after_block || !reads_as_is || optimizer.block_scale == 1) return false;
  const auto has_values = [&](int param) { return state_.params[param].grad.values != Values{}; };
  return std::any_of(optimizer.params.begin(), optimizer.params.end(),
                     [&](int param) { return optimizer.added[param] && has_values(param); });
}

void LiteralAmp::step_param(int param, Weight& weight, Type type, const Gradient& grad, double factor) {
  if (!grad.defined) return;
  Values update = scaled(grad.values, factor, Type::single);
  if (config_.momentum > 0) {
    Values& buffer = state_.momentum[param];
    buffer = has_momentum_[param] ? axpby(config_.momentum, buffer, 1, update, Type::single) : update;
    has_momentum_[param] = true;
    update = buffer;
  }
  weight.values = axpby(1, weight.values, -kLearningRate, update, type);
}

// OPT-06. apex_cpp: gradients that a block has put aside go as well, so that none comes back after delayed passes.
void LiteralAmp::zero_grad(Optimizer& optimizer, bool set_to_none) {
  if (has_masters(config_)) lazy_init(optimizer);
  for (int param : optimizer.params) {
    Gradient& grad = state_.params[param].grad;
    if (grad.defined) grad = {!set_to_none, {}};
    state_.masters[param].grad = {};
  }
  optimizer.stash = {};
  optimizer.most_recent_scale = 1;
  optimizer.scale_set_by_backward = false;
  optimizer.materialized = false;
  optimizer.params_have_scaled_gradients = false;
  optimizer.after_block = false;
}

void LiteralAmp::model_zero_grad(bool set_to_none) {
  for (int param = 0; param < kParams; ++param) {
    Gradient& grad = state_.params[param].grad;
    zeroed_[param] = zeroed_[param] || grad.defined;
    if (grad.defined) grad = {!set_to_none, {}};
    for (Optimizer& optimizer : optimizers_) optimizer.added[param] = false;
  }
}

void LiteralAmp::add_group(Optimizer& optimizer, int param) {
  for (const auto& other : optimizers_) {
    if (std::find(other.params.begin(), other.params.end(), param) != other.params.end()) return;
  }
  lazy_init(optimizer);  // APG-01
  optimizer.params.push_back(param);
  lazy_init(optimizer);  // APG-02, APG-04: gradients are kept
  optimizer.added[param] = !state_.has_master[param] && state_.params[param].grad.defined;
}

}  // namespace apex::test
