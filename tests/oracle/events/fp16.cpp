// The methods of FP16_Optimizer.
#include "tests/oracle/events/events.h"
#include "tests/oracle/session/session.h"

namespace oracle {
namespace {

using apex::fp16_utils::FP16_Optimizer;

FP16_Optimizer& fp16_of(Session& session, const Json& event) {
  OptimizerSlot& slot = session.optimizer(event.at("optimizer").as_string());
  if (!slot.fp16) throw std::runtime_error(event.where() + ": '" + slot.name + "' is no FP16_Optimizer");
  return *slot.fp16;
}

void check_fp16_scaler(Session& session, const Json& event, const FP16_Optimizer& optimizer) {
  const Json* expect = event.find("expect");
  if (!expect) return;
  const auto check_scale = [&](const char* name, double got) {
    if (const Json* wanted = expect->find(name)) compare_number(session.report(), name, got, wanted->as_double(), {});
  };
  check_scale("scale_after", optimizer.loss_scale());
  if (const Json* wanted = expect->find("overflow")) {
    compare_text(session.report(), "overflow", bool_text(optimizer.overflow()), wanted->text());
  }
}

void play_fp16_backward(Session& session, const Json& event) {
  FP16_Optimizer& optimizer = fp16_of(session, event);
  const double scale = optimizer.loss_scale();
  optimizer.backward(session.value(event.at("loss").as_string()), /*update_master_grads=*/false,
                     event.bool_or("retain_graph", false));
  inject(session, event);
  if (event.bool_or("update_master_grads", true)) optimizer.update_master_grads();
  const Json* expect = event.find("expect");
  if (expect && expect->has("scale_used")) {
    compare_number(session.report(), "scale_used", scale, expect->at("scale_used").as_double(), {});
  }
  check_fp16_scaler(session, event, optimizer);
}

void play_update_master_grads(Session& session, const Json& event) {
  inject(session, event);
  FP16_Optimizer& optimizer = fp16_of(session, event);
  optimizer.update_master_grads();
  check_fp16_scaler(session, event, optimizer);
}

void play_set_loss_scale(Session& session, const Json& event) {
  fp16_of(session, event).set_loss_scale(event.at("value").as_double());
}

}  // namespace

void add_fp16_events(EventRegistry& registry) {
  registry["fp16_backward"] = {{"optimizer", "loss", "update_master_grads", "retain_graph", "inject"},
                               {"scale_used", "scale_after", "overflow"},
                               play_fp16_backward};
  registry["fp16_update_master_grads"] = {{"optimizer", "inject"}, {"scale_after", "overflow"}, play_update_master_grads};
  registry["fp16_step"] = {{"optimizer"}, {"skipped", "params_changed"}, play_step};
  registry["set_loss_scale"] = {{"optimizer", "value"}, {}, play_set_loss_scale};
}

}  // namespace oracle
