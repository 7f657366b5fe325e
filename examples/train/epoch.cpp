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

// One step of the training loop; the lines that mixed precision adds or changes are marked.
StepLog train_step(const Config& config, const at::Tensor& images, const at::Tensor& labels, Network& net,
                   torch::optim::Optimizer& optimizer) {
  StepLog log;
  log.loss_scale = current_loss_scale();
  optimizer.zero_grad();
  const auto loss = at::cross_entropy_loss(net->forward(images), labels);
  {
    auto scaled_loss = amp::scale_loss(loss, optimizer);  // amp
    scaled_loss.backward();                               // amp: in place of loss.backward()
  }
  if (config.optimizer.clip_grad_norm > 0) amp::clip_grad_norm_(optimizer, config.optimizer.clip_grad_norm);  // amp
  optimizer.step();
  log.loss = loss.item<double>();
  log.result = amp::step_result(optimizer);
  log.skipped = log.result.skipped;
  log.scale_event = last_scale_event();
  return log;
}

}  // namespace

int64_t steps_per_epoch(const Config& config, const DataSplit& data) { return data.train.size() / config.batch_size; }

void train_epoch(const Config& config, const DataSplit& data, at::Device device, int64_t epoch, Network& net,
                 torch::optim::Optimizer& optimizer, const std::function<bool(const StepLog&)>& on_step) {
  const auto steps = steps_per_epoch(config, data);
  const auto order = at::tensor(
      shuffled_indices(data.train.size(), static_cast<uint64_t>(config.seed), static_cast<uint64_t>(epoch)), at::kLong);
  net->train();
  for (int64_t i = 0; i < steps; ++i) {
    const auto rows = order.narrow(0, i * config.batch_size, config.batch_size);
    const auto images = normalized(data.train.images.index_select(0, rows).to(device), data);
    const auto labels = data.train.labels.index_select(0, rows).to(device);
    const auto step = epoch * steps + i;
    const auto lr = learning_rate(config, step, steps);
    set_learning_rate(optimizer, lr);
    auto log = train_step(config, images, labels, net, optimizer);
    log.step = step;
    log.lr = lr;
    if (!on_step(log)) {
      return;
    }
  }
}

int64_t count_correct(const Dataset& set, const DataSplit& data, at::Device device, Network& net) {
  const at::NoGradGuard no_grad;
  net->eval();
  int64_t correct = 0;
  for (int64_t begin = 0; begin < set.size(); begin += kTestBatch) {
    const auto count = std::min(kTestBatch, set.size() - begin);
    const auto images = normalized(set.images.narrow(0, begin, count).to(device), data);
    const auto answers = net->forward(images).argmax(1).cpu();
    correct += answers.eq(set.labels.narrow(0, begin, count)).sum().item<int64_t>();
  }
  return correct;
}

}  // namespace train
