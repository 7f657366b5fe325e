#include "epoch.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>

#include "data/shuffle.h"
#include "optimizer.h"
#include "schedule.h"

namespace train {
namespace {

namespace amp = apex::amp;

constexpr int64_t kTestBatch = 256;

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

double current_loss_scale() { return amp::num_loss_scalers() > 0 ? amp::loss_scaler().loss_scale() : 1.0; }

// One step of the training loop; the lines that mixed precision adds or changes are marked. `to_measure`: null where no
// statistics are due.
StepLog train_step(const Config& config, const at::Tensor& images, const at::Tensor& labels, const Team::Forward& forward,
                   torch::optim::Optimizer& optimizer, Team& team, Observer& observer, const torch::nn::Module* to_measure) {
  StepLog log;
  log.loss_scale = current_loss_scale();
  if (to_measure) log.weights = amp::statistics(*to_measure);
  observer.step_begins();
  optimizer.zero_grad();
  const auto loss = at::cross_entropy_loss(forward(images), labels);
  observer.loss_is_there();
  {
    auto scaled_loss = amp::scale_loss(loss, optimizer);  // amp
    scaled_loss.backward();                               // amp: in place of loss.backward()
    if (to_measure) log.scaled_grads = amp::grad_statistics(*to_measure);
  }
  observer.gradients_are_there(optimizer);
  if (config.optimizer.clip_grad_norm > 0) amp::clip_grad_norm_(optimizer, config.optimizer.clip_grad_norm);  // amp
  optimizer.step();
  observer.step_ends();
  log.loss = team.mean(loss.item<double>());
  log.result = amp::step_result(optimizer);
  log.skipped = log.result.skipped;
  log.scale_event = last_scale_event();
  return log;
}

}  // namespace

int64_t images_per_process(const Config& config, const Team& team) { return config.batch_size / team.size(); }

int64_t images_per_step(const Config& config, const Team& team) { return images_per_process(config, team) * team.size(); }

int64_t steps_per_epoch(const Config& config, const DataSplit& data, const Team& team) {
  const auto images = images_per_step(config, team);
  return images > 0 ? data.train.size() / images : 0;
}

void train_epoch(const Config& config, const DataSplit& data, at::Device device, int64_t epoch, Network& net,
                 const Team::Forward& forward, torch::optim::Optimizer& optimizer, Team& team, Observer& observer,
                 const std::function<bool(const StepLog&)>& on_step) {
  const auto steps = steps_per_epoch(config, data, team);
  const auto share = images_per_process(config, team);
  const auto order = at::tensor(
      shuffled_indices(data.train.size(), static_cast<uint64_t>(config.seed), static_cast<uint64_t>(epoch)), at::kLong);
  team.begin_epoch(static_cast<uint64_t>(config.seed), static_cast<uint64_t>(epoch));
  net->train();
  for (int64_t i = 0; i < steps; ++i) {
    const auto rows = order.narrow(0, (i * team.size() + team.rank()) * share, share);
    const auto images = normalized(data.train.images.index_select(0, rows).to(device), data);
    const auto labels = data.train.labels.index_select(0, rows).to(device);
    const auto step = epoch * steps + i;
    const auto lr = learning_rate(config, step, steps);
    set_learning_rate(optimizer, lr);
    const bool due = config.statistics_every > 0 && (step + 1) % config.statistics_every == 0 && team.leads();
    auto log = train_step(config, images, labels, forward, optimizer, team, observer, due ? &*net : nullptr);
    log.step = step;
    log.lr = lr;
    if (!on_step(log)) {
      return;
    }
  }
}

int64_t count_correct(const Dataset& set, const DataSplit& data, at::Device device, Network& net, Team& team) {
  const at::NoGradGuard no_grad;
  net->eval();
  int64_t correct = 0;
  for (int64_t begin = team.rank() * kTestBatch; begin < set.size(); begin += team.size() * kTestBatch) {
    const auto count = std::min(kTestBatch, set.size() - begin);
    const auto images = normalized(set.images.narrow(0, begin, count).to(device), data);
    const auto answers = net->forward(images).argmax(1).cpu();
    correct += answers.eq(set.labels.narrow(0, begin, count)).sum().item<int64_t>();
  }
  return team.sum(correct);
}

}  // namespace train
