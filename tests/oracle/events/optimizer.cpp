// zero_grad, step, clipping, options and groups.
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>

#include "tests/oracle/events/events.h"
#include "tests/oracle/session/optimizers.h"
#include "tests/oracle/session/session.h"

namespace oracle {
namespace {

OptimizerSlot& slot_of(Session& session, const Json& event) { return session.optimizer(event.at("optimizer").as_string()); }

void play_zero_grad(Session& session, const Json& event) {
  OptimizerSlot& slot = slot_of(session, event);
  slot.fp16 ? slot.fp16->zero_grad() : slot.optimizer->zero_grad();
  session.gradients_agree_again();
}

// The tensors that a step may change, with copies of their values.
struct Snapshot {
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> copies;

  void add(const at::Tensor& tensor) {
    tensors.push_back(tensor);
    copies.push_back(tensor.detach().clone());
  }
  // Bitwise, so that NaN counts as unchanged and -0 as another value than 0.
  bool changed() const {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor now = tensors[i].detach().contiguous().flatten().view(at::kByte);
      if (!now.equal(copies[i].contiguous().flatten().view(at::kByte))) return true;
    }
    return false;
  }
};

Snapshot snapshot(Session& session, OptimizerSlot& slot) {
  Snapshot taken;
  for (const auto& group : slot.ids) {
    for (const auto& id : group) taken.add(session.parameter(id));
  }
  for (const auto& group : slot.optimizer->param_groups()) {
    for (const auto& parameter : group.params()) taken.add(parameter);
  }
  return taken;
}

double largest_rate(const torch::optim::Optimizer& optimizer) {
  double rate = 0;
  for (const auto& group : optimizer.param_groups()) rate = std::max(rate, group.options().get_lr());
  return rate;
}

// Answers whether the step was skipped.
bool step(Session& session, OptimizerSlot& slot) {
  if (slot.fp16) {
    const bool overflow = slot.fp16->overflow();
    slot.fp16->step();
    return overflow;
  }
  slot.optimizer->step();
  return session.amp_enabled() && amp::step_result(*slot.optimizer).skipped;
}

void compare_will_skip(Session& session, OptimizerSlot& slot, bool skipped) {
  if (slot.will_skip) {
    compare_text(session.report(), "will_skip, seen at a step", bool_text(skipped), bool_text(*slot.will_skip));
  }
  slot.will_skip.reset();
}

}  // namespace

void check_will_skip(Session& session, OptimizerSlot& slot) {
  if (slot.will_skip) compare_will_skip(session, slot, step(session, slot));
}

void play_step(Session& session, const Json& event) {
  OptimizerSlot& slot = slot_of(session, event);
  const Snapshot before = snapshot(session, slot);
  const bool skipped = step(session, slot);
  const bool changed = before.changed();
  if (!skipped && optimizer_type(slot.type).steps_like_sign) session.sign_steps(slot.name) += 2 * largest_rate(*slot.optimizer);

  compare_will_skip(session, slot, skipped);
  const Json* expect = event.find("expect");
  if (!expect) return;
  if (expect->has("skipped")) compare_text(session.report(), "skipped", bool_text(skipped), expect->at("skipped").text());
  compare_text(session.report(), "params_changed", bool_text(changed), expect->at("params_changed").text());
}

namespace {

std::vector<at::Tensor> masters(Session& session, OptimizerSlot& slot) {
  if (session.amp_enabled()) return amp::master_params(*slot.optimizer);
  std::vector<at::Tensor> parameters;
  for (const auto& group : slot.optimizer->param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

void play_clip(Session& session, const Json& event) {
  OptimizerSlot& slot = slot_of(session, event);
  const Json* given = event.find("norm_type");
  const double norm_type = given ? given->as_double() : 2.0;
  const double max_norm = event.at("max_norm").as_double();
  const double total = slot.fp16 ? slot.fp16->clip_master_grads(max_norm, norm_type)
                                 : torch::nn::utils::clip_grad_norm_(masters(session, slot), max_norm, norm_type);
  const Json* expect = event.find("expect");
  if (expect) {
    compare_number(session.report(), "total norm", total, expect->at("total_norm").as_double(), session.tolerances().norm());
  }
}

void play_clip_value(Session& session, const Json& event) {
  torch::nn::utils::clip_grad_value_(masters(session, slot_of(session, event)), event.at("value").as_double());
}

void play_set_option(Session& session, const Json& event) {
  OptimizerSlot& slot = slot_of(session, event);
  for (auto& group : slot.optimizer->param_groups()) set_options(slot.type, group.options(), &event.at("options"));
}

void play_add_param_group(Session& session, const Json& event) {
  OptimizerSlot& slot = slot_of(session, event);
  auto options = slot.optimizer->defaults().clone();
  set_options(slot.type, *options, event.find("options"));
  std::vector<at::Tensor> params;
  slot.ids.emplace_back();
  for (const Json& id : event.at("params").items()) {
    params.push_back(session.parameter(id.as_string()));
    slot.ids.back().push_back(id.as_string());
  }
  slot.optimizer->add_param_group({std::move(params), std::move(options)});
  const Json* expect = event.find("expect");
  if (expect) {
    compare_number(session.report(), "number of groups", static_cast<double>(slot.optimizer->param_groups().size()),
                   expect->at("num_groups").as_double(), {});
  }
}

}  // namespace

void add_optimizer_events(EventRegistry& registry) {
  registry["zero_grad"] = {{"optimizer"}, {}, play_zero_grad};
  registry["step"] = {{"optimizer"}, {"skipped", "params_changed"}, play_step};
  registry["clip"] = {{"optimizer", "max_norm", "norm_type"}, {"total_norm"}, play_clip};
  registry["clip_value"] = {{"optimizer", "value"}, {}, play_clip_value};
  registry["set_option"] = {{"optimizer", "options"}, {}, play_set_option};
  registry["add_param_group"] = {{"optimizer", "params", "options"}, {"num_groups"}, play_add_param_group};
}

}  // namespace oracle
