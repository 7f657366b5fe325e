#include "training/step.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/utils/clip_grad.h>

namespace train {
namespace {

namespace amp = apex::amp;

// What the last step did to the loss scale.
std::optional<amp::ScaleEvent> last_scale_event() {
  if (amp::num_loss_scalers() == 0) return std::nullopt;
  const auto& scaler = amp::loss_scaler();
  const auto& events = scaler.history().events();
  const bool of_this_step = !events.empty() && events.back().update == scaler.updates();
  // A scale that a checkpoint brought back is no work of a step.
  if (!of_this_step || events.back().change == amp::ScaleChange::restored) return std::nullopt;
  return events.back();
}

// One step of the training loop; the lines that mixed precision adds or changes are marked.
StepLog step_at_level(const Config& config, const Batch& batch, const Training& training, Team& team, Observer& observer,
                      bool measured) {
  const auto& [net, forward, optimizer, torch_amp, ema, second] = training;
  const auto optimizers = training.optimizers();
  StepLog log;
  log.loss_scale = training.loss_scale();
  if (measured) log.weights = amp::statistics(*net);
  observer.step_begins();
  for (auto* each : optimizers) each->zero_grad();
  const auto loss = at::cross_entropy_loss(forward(batch.images), batch.labels);
  observer.loss_is_there();
  {
    auto scaled_loss = amp::scale_loss(loss, optimizers);  // amp
    scaled_loss.backward();                                // amp: in place of loss.backward()
    if (measured) log.scaled_grads = amp::grad_statistics(*net);
  }
  observer.gradients_are_there(optimizer);
  if (config.optimizer.clip_grad_norm > 0) amp::clip_grad_norm_(optimizer, config.optimizer.clip_grad_norm);  // amp
  for (auto* each : optimizers) each->step();
  observer.step_ends();
  log.loss = team.mean(loss.item<double>());
  log.result = amp::step_result(optimizer);
  log.scale_event = last_scale_event();
  return log;
}

// The same as a program has it that was written for torch.amp.
StepLog step_with_torch_amp(const Config& config, const Batch& batch, const Training& training, Team& team, Observer& observer,
                            bool measured) {
  const auto& [net, forward, optimizer, torch_amp, ema, second] = training;
  StepLog log;
  log.loss_scale = training.loss_scale();
  if (measured) log.weights = amp::statistics(*net);
  observer.step_begins();
  optimizer.zero_grad();
  at::Tensor loss;
  {
    const auto guard = torch_amp->autocast();  // torch.amp
    loss = at::cross_entropy_loss(forward(batch.images), batch.labels);
  }
  observer.loss_is_there();
  auto* scaler = torch_amp->scaler();
  (scaler ? scaler->scale(loss) : loss).backward();  // torch.amp: in place of loss.backward()
  if (measured) log.scaled_grads = amp::grad_statistics(*net);
  observer.gradients_are_there(optimizer);
  if (config.optimizer.clip_grad_norm > 0) {
    if (scaler) scaler->unscale_(optimizer);  // torch.amp
    torch::nn::utils::clip_grad_norm_(net->parameters(), config.optimizer.clip_grad_norm);
  }
  if (scaler) {
    scaler->step(optimizer);  // torch.amp: in place of optimizer.step()
    scaler->update();         // torch.amp
  } else {
    optimizer.step();
  }
  observer.step_ends();
  log.loss = team.mean(loss.item<double>());
  log.scale_event = scale_event(log.loss_scale, training.loss_scale());
  log.result = result_of_step(*net, log.loss, log.loss_scale, training.loss_scale());
  return log;
}

}  // namespace

double Training::loss_scale() const {
  if (torch_amp) return torch_amp->loss_scale();
  return amp::num_loss_scalers() > 0 ? amp::loss_scaler().loss_scale() : 1.0;
}

StepLog train_step(const Config& config, const Batch& batch, const Training& training, Team& team, Observer& observer,
                   bool measured) {
  const auto step = training.torch_amp ? step_with_torch_amp : step_at_level;
  auto log = step(config, batch, training, team, observer, measured);
  log.skipped = log.result.skipped;
  return log;
}

}  // namespace train
