// backward inside a scale_loss block.
#include <ATen/core/grad_mode.h>

#include "tests/oracle/events/events.h"
#include "tests/oracle/session/session.h"

namespace oracle {

void inject(Session& session, const Json& event) {
  const Json* values = event.find("inject");
  if (!values || values->is_null()) return;
  at::NoGradGuard no_grad;
  for (const Json& entry : values->items()) {
    const std::string id = entry.at("param").as_string();
    const at::Tensor grad = session.parameter(id).grad();
    if (!grad.defined()) throw std::runtime_error("inject: " + id + " has no gradient");
    grad.view(-1)[entry.at("index").as_int()] = entry.at("value").as_double();
  }
}

namespace {

// Runs the block; returns the scaled loss.
at::Tensor run_backward(Session& session, const Json& event, const std::vector<torch::optim::Optimizer*>& optimizers) {
  const at::Tensor loss = session.value(event.at("loss").as_string());
  const auto options = amp::ScaleLossOptions(event.int_or("loss_id", 0))
                           .delay_unscale(event.bool_or("delay_unscale", false))
                           .delay_overflow_check(event.bool_or("delay_overflow_check", false));
  const bool as_list = optimizers.size() > 1 || event.bool_or("as_list", false);
  auto scaled_loss = as_list ? amp::scale_loss(loss, optimizers, options) : amp::scale_loss(loss, *optimizers.at(0), options);
  scaled_loss.backward();
  inject(session, event);
  const at::Tensor scaled = scaled_loss.tensor().detach();
  scaled_loss.finish();
  return scaled;
}

void check_scaler(Session& session, const Json& expect, const amp::LossScaler& scaler) {
  compare_number(session.report(), "loss scale afterwards", scaler.loss_scale(), expect.at("scale_after").as_double(), {});
  compare_number(session.report(), "unskipped count afterwards", static_cast<double>(scaler.unskipped()),
                 expect.at("unskipped_after").as_double(), {});
}

// Whether the next step will be skipped shows in that step; here it is only noted. Once it will be, a later pass does not
// change that.
void note_will_skip(Session& session, const Json& expect) {
  const Json* will_skip = expect.find("will_skip");
  if (!will_skip) return;
  for (const auto& [name, value] : will_skip->members()) {
    auto& noted = session.optimizer(name).will_skip;
    session.report().check(!noted.value_or(false) || value.as_bool(), "will_skip of " + name, "true until the step", "false");
    noted = value.as_bool();
  }
}

void play_backward(Session& session, const Json& event) {
  std::vector<torch::optim::Optimizer*> optimizers;
  for (const Json& name : event.at("optimizers").items()) {
    optimizers.push_back(session.optimizer(name.as_string()).optimizer.get());
  }
  const double scale = session.amp_enabled() ? amp::loss_scaler(event.int_or("loss_id", 0)).loss_scale() : 1.0;
  const at::Tensor scaled = run_backward(session, event, optimizers);

  const Json* expect = event.find("expect");
  if (!expect) return;
  compare_text(session.report(), "scaled loss, dtype", dtype_name(scaled.scalar_type()),
               expect->at("scaled_loss_dtype").as_string());
  compare_number(session.report(), "scaled loss", scaled.item().toDouble(), expect->at("scaled_loss").as_double(),
                 session.tolerances().scaled_loss(scale));
  if (!expect->has("scale_used")) return;
  compare_number(session.report(), "loss scale used", scale, expect->at("scale_used").as_double(), {});
  check_scaler(session, *expect, amp::loss_scaler(event.int_or("loss_id", 0)));
  note_will_skip(session, *expect);
}

}  // namespace

void add_backward_events(EventRegistry& registry) {
  registry["backward"] = {{"loss", "optimizers", "loss_id", "as_list", "delay_unscale", "delay_overflow_check", "inject"},
                          {"scale_used", "scaled_loss", "scaled_loss_dtype", "scale_after", "unskipped_after", "will_skip"},
                          play_backward};
}

}  // namespace oracle
