#include "tests/state_machine/events.h"

#include <cmath>
#include <limits>
#include <sstream>

namespace apex::test {
namespace {

int below(int n, Random& random) { return static_cast<int>(random() % static_cast<unsigned>(n)); }
bool chance(int percent, Random& random) { return below(100, random) < percent; }

template <class T>
T one_of(std::initializer_list<T> choices, Random& random) {
  return choices.begin()[below(static_cast<int>(choices.size()), random)];
}

// Small enough for exact sums in every dtype, now and then large enough to overflow float16 once it is scaled.
float derivative(Random& random) {
  const float sign = chance(50, random) ? 1.0f : -1.0f;
  return sign * static_cast<float>(one_of({1, 2, 3}, random)) * one_of({0.25f, 0.5f, 1.0f}, random);
}

float nonfinite(Random& random) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  return one_of({kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}, random);
}

void fill_derivatives(Event& event, Random& random) {
  for (auto& grad : event.derivatives) {
    if (chance(25, random)) continue;
    grad = {true, {derivative(random), derivative(random)}};
  }
  if (chance(25, random)) {
    auto& grad = event.derivatives[below(kParams, random)];
    if (grad.defined) grad.values[below(2, random)] = nonfinite(random);
  }
}

// O6 has O5's rules, and slow products.
std::string random_level(Random& random) { return kModelledLevels[below(5, random)]; }

Event random_block(const Config& config, Random& random) {
  Event event;
  event.optimizers = one_of({1, 1, 2, 3, 3}, random);
  event.loss = below(config.losses, random);
  event.delay_unscale = !config.smallest_scale && chance(20, random);
  event.delay_overflow_check = chance(10, random);
  event.throws = chance(6, random);
  if (chance(3, random)) event.bystander_level = random_level(random);
  fill_derivatives(event, random);
  return event;
}

Event random_load(const Config& config, Random& random) {
  Event event;
  event.kind = Event::load_state;
  if (chance(50, random)) return event;  // what was saved
  const int entries = std::max(1, config.losses + one_of({0, 0, 0, 1, -1}, random));
  for (int i = 0; i < entries; ++i) {
    const int exponent = config.smallest_scale && chance(20, random) ? -126 : below(14, random);
    const int64_t unskipped =
        one_of<int64_t>({0, 1, config.scale_window - 1, config.scale_window - 2, config.scale_window + 1}, random);
    event.saved.emplace_back(std::ldexp(1.0, exponent), std::max<int64_t>(unskipped, 0));
  }
  event.foreign_key = chance(10, random);
  return event;
}

// Events are left out to find a short program: the ones after this must suit either set-up.
Event random_initialize(const Config& config, Random& random) {
  Event event;
  event.kind = Event::initialize;
  event.keeps_handles = chance(50, random);
  event.again = random_config(kModelledLevels[below(6, random)], random);
  event.again->losses = config.losses;
  event.again->smallest_scale = config.smallest_scale;
  if (config.smallest_scale && event.again->kind == OptimizerKind::fused_sgd_in_fused_order) {
    event.again->kind = OptimizerKind::fused_sgd;
  }
  return event;
}

Event random_bystander(Random& random) {
  Event event;
  event.kind = Event::bystander;
  event.keeps_handles = chance(50, random);
  event.bystander_level = random_level(random);
  return event;
}

Event random_freeze(Random& random) {
  Event event;
  event.kind = Event::freeze;
  event.param = below(kParams, random);
  event.on = chance(60, random);
  return event;
}

Event random_event(const Config& config, Random& random) {
  const int dice = below(108, random);
  if (dice < 42) return random_block(config, random);
  if (dice >= 104) return random_freeze(random);
  if (dice >= 102) return random_bystander(random);
  if (dice >= 100) return random_initialize(config, random);
  Event event;
  event.optimizer = below(kOptimizers, random);
  if (dice < 67) {
    event.kind = Event::step;
  } else if (dice < 80) {
    event.kind = Event::zero_grad;
    event.set_to_none = chance(70, random);
  } else if (dice < 84) {
    event.kind = Event::model_zero_grad;
    event.set_to_none = chance(70, random);
  } else if (dice < 88) {
    event.kind = Event::add_group;
    event.param = one_of({5, 6}, random);
  } else if (dice < 91) {
    event.kind = Event::plain_backward;
    fill_derivatives(event, random);
  } else if (dice < 96) {
    return random_load(config, random);
  } else if (dice < 98) {
    event.kind = Event::save_state;
  } else {
    event.kind = Event::materialize;
  }
  return event;
}

const char* name_of(Event::Kind kind) {
  constexpr const char* kNames[] = {"scale_loss",      "plain backward", "step",       "zero_grad",
                                    "model zero_grad", "add group",      "load state", "save state",
                                    "master_params",   "initialize",     "bystander",  "freeze"};
  return kNames[kind];
}

}  // namespace

Config random_config(const std::string& level, Random& random) {
  Config config;
  config.level = level;
  config.kind = one_of({OptimizerKind::sgd, OptimizerKind::fused_sgd, OptimizerKind::fused_sgd_in_fused_order}, random);
  config.dynamic = chance(75, random);
  config.static_scale = one_of({1.0, 1.0, 4.0, 1024.0}, random);
  config.max_scale = one_of({65536.0, 16.0, 256.0, 256.0, 4096.0, 16777216.0}, random);
  if (chance(20, random)) config.min_scale = one_of({1.0, 8.0, config.max_scale}, random);
  config.scale_window = one_of<int64_t>({2000, 1, 2, 3, 5}, random);
  config.losses = 1 + below(kLosses, random);
  // Halves of halves soon leave float16.
  config.momentum = level != "O3" && chance(50, random) ? 0.5 : 0.0;
  config.smallest_scale = config.kind != OptimizerKind::fused_sgd_in_fused_order && chance(25, random);
  return config;
}

std::vector<Event> random_events(const Config& config, Random& random) {
  std::vector<Event> events(3 + below(chance(20, random) ? 30 : 10, random));
  Config now = config;
  for (auto& event : events) {
    event = random_event(now, random);
    if (event.again) now = *event.again;
  }
  return events;
}

std::string describe(const Config& config) {
  constexpr const char* kKinds[] = {"SGD", "FusedSGD", "FusedSGD(materialize_master_grads=false)"};
  std::ostringstream text;
  text << config.level << ", " << kKinds[static_cast<int>(config.kind)] << ", momentum " << config.momentum << ", ";
  if (config.dynamic) {
    text << "dynamic up to " << config.max_scale << ", window " << config.scale_window;
    if (config.min_scale) text << ", at least " << *config.min_scale;
  } else {
    text << "static " << config.static_scale;
  }
  text << ", losses " << config.losses;
  return text.str();
}

std::string describe(const Event& event) {
  std::ostringstream text;
  text << name_of(event.kind);
  const bool pass = event.kind == Event::backward || event.kind == Event::plain_backward;
  if (event.kind == Event::backward) {
    text << " optimizers "
         << (event.optimizers == 3   ? "0 1"
             : event.optimizers == 2 ? "1"
                                     : "0")
         << ", loss " << event.loss << (event.delay_unscale ? ", delay_unscale" : "")
         << (event.delay_overflow_check ? ", delay_overflow_check" : "") << (event.throws ? ", exception" : "");
  } else if (event.again) {
    text << " " << describe(*event.again);
  } else if (event.kind != Event::bystander) {
    text << " optimizer " << event.optimizer << (event.set_to_none ? "" : ", zeros");
  }
  if (event.bystander_level) text << (pass ? ", bystander at " : " at ") << *event.bystander_level;
  if (event.keeps_handles) text << ", handles kept";
  if (event.kind == Event::add_group || event.kind == Event::freeze) text << ", parameter " << event.param;
  if (event.kind == Event::freeze) text << (event.on ? ", on" : ", off");
  for (int i = 0; pass && i < kParams; ++i) {
    const auto& grad = event.derivatives[i];
    if (grad.defined) text << ", d" << i << " = (" << grad.values[0] << ", " << grad.values[1] << ")";
  }
  for (const auto& [scale, unskipped] : event.saved) text << ", " << scale << "/" << unskipped;
  return text.str();
}

}  // namespace apex::test
