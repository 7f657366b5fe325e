#include "training/epoch.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/tensor.h>

#include "data/shuffle.h"
#include "training/optimizer.h"
#include "training/schedule.h"

namespace train {
namespace {

constexpr int64_t kTestBatch = 256;

at::Tensor scores_of(const at::Tensor& images, const Training& training) {
  if (!training.torch_amp) return training.net->forward(images);
  const auto guard = training.torch_amp->autocast();
  return training.net->forward(images);
}

int64_t correct_answers(const DataSplit& data, at::Device device, const Training& training, Team& team) {
  const at::NoGradGuard no_grad;
  const auto& set = data.test;
  training.net->eval();
  int64_t correct = 0;
  for (int64_t begin = team.rank() * kTestBatch; begin < set.size(); begin += team.size() * kTestBatch) {
    const auto count = std::min(kTestBatch, set.size() - begin);
    const auto images = normalized(set.images.narrow(0, begin, count).to(device), data);
    const auto answers = scores_of(images, training).argmax(1).cpu();
    correct += answers.eq(set.labels.narrow(0, begin, count)).sum().item<int64_t>();
  }
  return team.sum(correct);
}

}  // namespace

int64_t images_per_process(const Config& config, const Team& team) { return config.batch_size / team.size(); }

int64_t images_per_step(const Config& config, const Team& team) { return images_per_process(config, team) * team.size(); }

int64_t steps_per_epoch(const Config& config, const DataSplit& data, const Team& team) {
  const auto images = images_per_step(config, team);
  return images > 0 ? data.train.size() / images : 0;
}

void train_epoch(const Config& config, const DataSplit& data, at::Device device, int64_t epoch, const Training& training,
                 Team& team, Observer& observer, const std::function<bool(const StepLog&)>& on_step) {
  const auto steps = steps_per_epoch(config, data, team);
  const auto share = images_per_process(config, team);
  const auto order = at::tensor(
      shuffled_indices(data.train.size(), static_cast<uint64_t>(config.seed), static_cast<uint64_t>(epoch)), at::kLong);
  team.begin_epoch(static_cast<uint64_t>(config.seed), static_cast<uint64_t>(epoch));
  training.net->train();
  set_training(training.optimizer, true);
  std::vector<std::unique_ptr<apex::lr_scheduler::LRScheduler>> schedules;
  for (auto* each : training.optimizers()) schedules.push_back(make_schedule(config, *each, epoch * steps, steps));
  for (int64_t i = 0; i < steps; ++i) {
    const auto rows = order.narrow(0, (i * team.size() + team.rank()) * share, share);
    const Batch batch{normalized(data.train.images.index_select(0, rows).to(device), data),
                      data.train.labels.index_select(0, rows).to(device)};
    const auto step = epoch * steps + i;
    const bool measured = config.statistics_every > 0 && (step + 1) % config.statistics_every == 0 && team.leads();
    auto log = train_step(config, batch, training, team, observer, measured);
    log.step = step;
    log.lr = schedules.front()->get_last_lr().front();
    for (auto& each : schedules) each->step();
    if (training.ema && !log.skipped) training.ema->update();
    if (!on_step(log)) {
      return;
    }
  }
}

int64_t count_correct(const DataSplit& data, at::Device device, const Training& training, Team& team) {
  set_training(training.optimizer, false);
  if (!training.ema) return correct_answers(data, device, training, team);
  const auto averaged = training.ema->average_parameters();
  return correct_answers(data, device, training, team);
}

}  // namespace train
