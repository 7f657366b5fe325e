#include "training/trainer.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <optional>

#include <ATen/Context.h>
#include <apex_cpp/amp/level_fallback.h>
#include <apex_cpp/parallel/sync_batch_norm.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "common/write_whole.h"
#include "errors.h"
#include "models/models.h"
#include "training/checkpoint.h"
#include "training/climbing.h"
#include "training/epoch.h"
#include "training/optimizer.h"

namespace train {
namespace {

namespace amp = apex::amp;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Everything random follows from the seed, and no kernel is chosen by measuring.
void make_deterministic(uint64_t seed) {
  at::globalContext().setBenchmarkCuDNN(false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::manual_seed(seed);
}

// What the display tells beside how far training is.
std::string figures(double loss, double loss_scale, int64_t skipped, double images_per_second) {
  char text[120];
  const double shown = std::isnan(loss) ? std::abs(loss) : loss;  // printf writes the sign of a NaN
  std::snprintf(text, sizeof(text), "loss %.4f  scale %g  skipped %" PRId64 "  %.0f images/s", shown, loss_scale, skipped,
                images_per_second);
  return text;
}

// What one session of training works on.
struct Session {
  const Config& config;
  const DataSplit& data;
  const RunFolder& folder;
  at::Device device;
  const Training& training;
  Team& team;
  Observer& observer;
  Metrics* metrics;  // of the leader
  common::Progress& progress;
  Position position;
  amp::LevelFallback& fallback;
  Position saved = position;  // what the checkpoint has
  Clock::time_point begin = Clock::now();
  int64_t steps_here = 0;  // steps taken in this session

  common::Standing standing_at(const StepLog& log) const {
    const auto steps = steps_per_epoch(config, data, team);
    const auto pace = seconds_since(begin) / static_cast<double>(std::max<int64_t>(steps_here, 1));
    common::Standing standing;
    standing.task = "epoch " + std::to_string(position.epoch + 1) + "/" + std::to_string(config.epochs);
    standing.done = log.step % steps + 1;
    standing.total = steps;
    standing.details =
        figures(log.loss, log.loss_scale, position.skipped, static_cast<double>(images_per_step(config, team)) / pace);
    standing.seconds_left = pace * static_cast<double>(config.epochs * steps - position.step);
    return standing;
  }

  EpochLog train_one_epoch() {
    const auto started = Clock::now();
    EpochLog epoch;
    epoch.epoch = position.epoch + 1;
    int64_t steps = 0;
    train_epoch(config, data, device, position.epoch, training, team, observer, [&](const StepLog& log) {
      ++steps, ++steps_here, ++position.step;
      position.skipped += log.skipped;
      epoch.skipped += log.skipped;
      epoch.train_loss += log.loss;
      epoch.loss_scale = log.loss_scale;
      epoch.lr = log.lr;
      if (metrics) metrics->add(epoch.epoch, log);
      progress.show(standing_at(log));
      return !fallback.update(log.step + 1, log.loss, log.result);
    });
    epoch.seconds = seconds_since(started);
    epoch.train_loss /= static_cast<double>(steps);
    epoch.images_per_second = static_cast<double>(steps * images_per_step(config, team)) / epoch.seconds;
    epoch.diverged = fallback.diverged();
    return epoch;
  }

  void test(EpochLog& epoch) {
    team.agree(training.net);
    epoch.correct = count_correct(data, device, training, team);
    epoch.tested = data.test.size();
  }

  void tell(const EpochLog& epoch) {
    progress.line("epoch " + std::to_string(epoch.epoch) + "/" + std::to_string(config.epochs) + "  test accuracy " +
                  percent(epoch.accuracy()) + "  " +
                  figures(epoch.train_loss, epoch.loss_scale, position.skipped, epoch.images_per_second));
  }

  // The leader's work, for which all wait: where the file cannot be written, all end. State that is spread over the team is
  // gathered by all. A run that may come back to its checkpoint keeps the last good one, and has to end with one.
  void save() {
    if (config.climbs() && !fallback.is_good(training.net, training.optimizers())) {
      if (position.epoch == config.epochs)
        fallback.give_up("too many steps in a row were skipped at the end of the last epoch");
      progress.line("not saved: " + (fallback.diverged() ? fallback.reason() : "too many steps in a row were skipped"));
      return;
    }
    const auto write = [&] {
      save_checkpoint(folder.checkpoint(), training, position);
      return std::string();
    };
    config.optimizer.is_sharded() ? write() : team.of_leader(write);
    saved = position;
  }

  // What a run that diverges in its first epochs comes back to.
  void save_first() {
    save();
    if (fallback.diverged()) {
      throw UserError("key 'on_divergence': the run has no checkpoint to go back to: " + fallback.reason());
    }
  }

  Outcome run(int64_t last_epoch) {
    Outcome outcome;
    if (position.epoch >= last_epoch) {
      test(outcome.last);
    }
    while (position.epoch < last_epoch && !fallback.diverged()) {
      outcome.last = train_one_epoch();
      test(outcome.last);
      if (metrics) metrics->add(outcome.last);
      tell(outcome.last);
      if (outcome.last.diverged) {
        break;
      }
      ++position.epoch;
      if (position.epoch % config.checkpoint_every == 0 || position.epoch == last_epoch) {
        save();
      }
    }
    outcome.epochs = position.epoch;
    outcome.skipped = position.skipped;
    outcome.saved = saved;
    outcome.divergence = fallback.reason();
    return outcome;
  }
};

// What the run is trained by from now on. Not before it is known to begin: a folder that is still empty may be taken again.
void note_config(const RunFolder& folder, const Config& config, Team& team) {
  team.of_leader([&] {
    common::write_whole(folder.config(), to_yaml(config));
    return std::string();
  });
}

apex::swa_utils::ExponentialMovingAverageOptions average_options(const EmaConfig& config) {
  return apex::swa_utils::ExponentialMovingAverageOptions(config.decay).use_num_updates(config.use_num_updates);
}

Outcome train_at_one_level(const Config& config, const DataSplit& data, const RunFolder& folder, bool resume,
                           int64_t last_epoch, Team& team, Observer& observer, common::Progress& progress,
                           amp::LevelFallback& fallback) {
  const auto device = chosen_device(config.device);
  make_deterministic(static_cast<uint64_t>(config.seed));
  auto model = make_classifier(config.model, shape_of(data), data.classes);
  model->to(device);
  if (config.sync_batch_norm) apex::parallel::convert_syncbn_model(model);
  auto model_optimizers = make_optimizers(config.optimizer, *model);

  auto [net, optimizers] = as_user_error<c10::ValueError>([&] {
    return amp::initialize(model, model_optimizers, config.level);  // amp
  });
  auto& optimizer = optimizers.front();

  std::optional<TorchAmp> torch_amp;
  if (config.torch_amp) torch_amp.emplace(*config.torch_amp, device);
  Team::Forward forward;
  std::optional<apex::swa_utils::ExponentialMovingAverage> ema;
  if (config.ema) ema.emplace(*optimizer, average_options(*config.ema));
  const Training training{net,
                          forward,
                          *optimizer,
                          torch_amp ? &*torch_amp : nullptr,
                          ema ? &*ema : nullptr,
                          optimizers.size() > 1 ? optimizers[1].get() : nullptr};
  const auto position = resume ? load_checkpoint(folder.checkpoint(), training) : Position{};
  forward = team.join(net, config);
  note_config(folder, config, team);
  std::optional<Metrics> metrics;
  if (team.leads()) metrics.emplace(folder, position.step, position.epoch, config);
  Session session{config,   data,     folder,  device, training, team, observer, metrics ? &*metrics : nullptr,
                  progress, position, fallback};
  if (config.climbs() && !resume) session.save_first();
  const auto outcome = session.run(last_epoch);
  observer.training_ends(net, *optimizer, training.loss_scale());
  return outcome;
}

}  // namespace

at::Device chosen_device(const std::string& name) {
  const bool gpu = at::hasCUDA();
  if (name == "cuda" && !gpu) {
    throw UserError("key 'device': cuda needs a GPU, but LibTorch finds none; use cpu or auto");
  }
  return gpu && name != "cpu" ? c10::impl::VirtualGuardImpl(at::kCUDA).getDevice() : at::Device(at::kCPU);
}

void check_batch_size(const Config& config, const DataSplit& data, int64_t processes) {
  const auto key = "key 'batch_size': " + std::to_string(config.batch_size);
  const auto share = config.batch_size / processes;
  if (share == 0) {
    throw UserError(key + " images are too few for " + std::to_string(processes) + " processes");
  }
  if (share * processes > data.train.size()) {
    throw UserError(key + " is more than the " + std::to_string(data.train.size()) + " training images");
  }
}

Outcome train(const Config& config, const DataSplit& data, const RunFolder& folder, bool resume, int64_t stop_after, Team& team,
              Observer& observer, common::Progress& progress) {
  const auto last_epoch = stop_after > 0 ? std::min(stop_after, config.epochs) : config.epochs;
  amp::LevelFallback fallback(config.level, levels_to_climb(config));
  auto outcome = train_at_one_level(config, data, folder, resume, last_epoch, team, observer, progress, fallback);
  for (auto above = config; fallback.climb();) {
    above.level = fallback.level();
    above.climb_to.clear();
    team.of_leader([&] {
      note_climb(folder, fallback.climbs().back(), outcome.last.epoch, outcome.saved.step);
      return std::string();
    });
    progress.line("going back to step " + std::to_string(outcome.saved.step) + " and continuing at " + above.level.name());
    outcome = train_at_one_level(above, data, folder, /*resume=*/true, last_epoch, team, observer, progress, fallback);
  }
  return outcome;
}

}  // namespace train
