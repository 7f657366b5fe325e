// forward, loss, mode, requires_grad, gradients set from outside.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <optional>

#include "tests/oracle/events/events.h"
#include "tests/oracle/session/session.h"

namespace oracle {
namespace {

at::Tensor run_forward(ModelSlot& model, const at::Tensor& input) {
  return model.handle ? (*model.handle)->forward(input) : model.net->forward(input);
}

void play_forward(Session& session, const Json& event) {
  at::Tensor input = session.value(event.at("input").as_string());
  if (event.bool_or("detach", false)) input = input.detach();
  const at::AutoGradMode grad_mode(!event.bool_or("no_grad", false));
  std::optional<amp::disable_casts> uncast;
  if (event.bool_or("disable_casts", false)) uncast.emplace();
  const at::Tensor output = run_forward(session.model(event.at("model").as_string()), input);
  session.set_value(event.at("output").as_string(), output);

  const Json* expect = event.find("expect");
  if (!expect) return;
  compare_text(session.report(), "output dtype", dtype_name(output.scalar_type()), expect->at("output_dtype").as_string());
  compare_text(session.report(), "output shape", shape_text(output.sizes()), shape_text(expect->at("output_shape").as_ints()));
  session.compare_stored(expect->at("tensor").as_string(), output, session.tolerances().output());
}

at::Tensor loss_of(const std::string& kind, const at::Tensor& input, const at::Tensor& target) {
  if (kind == "mse") return at::mse_loss(input, target);
  if (kind == "l1") return at::l1_loss(input, target);
  if (kind == "smooth_l1") return at::smooth_l1_loss(input, target);
  if (kind == "cross_entropy") return at::cross_entropy_loss(input, target);
  if (kind == "bce_with_logits") return at::binary_cross_entropy_with_logits(input, target);
  throw NeedsFeature("loss " + kind);
}

void play_loss(Session& session, const Json& event) {
  const at::Tensor input = session.value(event.at("input").as_string());
  const at::Tensor target = session.value(event.at("target").as_string());
  at::Tensor loss = loss_of(event.at("kind").as_string(), input, target);
  if (const Json* factor = event.find("multiply")) loss = loss * factor->as_double();
  session.set_value(event.at("as").as_string(), loss);

  const Json* expect = event.find("expect");
  if (!expect) return;
  compare_text(session.report(), "loss dtype", dtype_name(loss.scalar_type()), expect->at("dtype").as_string());
  compare_number(session.report(), "loss", loss.item().toDouble(), expect->at("value").as_double(),
                 session.tolerances().output());
}

void play_mode(Session& session, const Json& event) {
  ModelSlot& model = session.model(event.at("model").as_string());
  const bool training = event.at("train").as_bool();
  model.net->train(training);
  if (model.handle) (*model.handle)->train(training);
}

void play_set_requires_grad(Session& session, const Json& event) {
  const Json* value = event.find("value");
  const bool requires_grad = (value ? *value : event.at("requires_grad")).as_bool();
  std::vector<Json> ids;
  if (const Json* one = event.find("param")) ids.push_back(*one);
  if (const Json* several = event.find("params")) ids.insert(ids.end(), several->items().begin(), several->items().end());
  if (ids.empty()) throw std::runtime_error(event.where() + ": no 'param' and no 'params'");
  for (const Json& id : ids) session.parameter(id.as_string()).set_requires_grad(requires_grad);
}

void play_set_grad(Session& session, const Json& event) {
  for (const auto& [id, name] : event.at("grads").members()) {
    at::Tensor parameter = session.parameter(id);
    parameter.mutable_grad() = name.is_null() ? at::Tensor() : session.value(name.as_string());
  }
}

}  // namespace

void add_model_events(EventRegistry& registry) {
  registry["forward"] = {{"model", "input", "output", "detach", "no_grad", "disable_casts"},
                         {"output_dtype", "output_shape", "tensor"},
                         play_forward};
  registry["loss"] = {{"kind", "input", "target", "as", "multiply"}, {"value", "dtype"}, play_loss};
  registry["mode"] = {{"model", "train"}, {}, play_mode};
  registry["set_requires_grad"] = {{"param", "params", "value", "requires_grad"}, {}, play_set_requires_grad};
  registry["set_grad"] = {{"grads"}, {}, play_set_grad};
}

}  // namespace oracle
