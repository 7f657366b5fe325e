#include "turns.h"

#include <cstdlib>
#include <filesystem>
#include <optional>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <apex_cpp/amp.h>
#include <apex_cpp/files/csv.h>
#include <apex_cpp/parallel/sync_batch_norm.h>

#include "cell_program.h"
#include "common/write_whole.h"
#include "data/load.h"
#include "models/models.h"
#include "program.h"
#include "recorder.h"
#include "training/epoch.h"
#include "training/optimizer.h"
#include "training/torch_amp.h"
#include "training/trainer.h"

namespace comparison {
namespace {

namespace amp = apex::amp;
namespace fs = std::filesystem;

constexpr int64_t kSteps = 13;  // of a turn; a recorder leaves out the first five

std::vector<train::Config> configs_in(const std::string& folder) {
  std::vector<train::Config> configs;
  for (auto path = folder + "/0.yaml"; fs::exists(path); path = folder + "/" + std::to_string(configs.size()) + ".yaml") {
    configs.push_back(train::read_config(path));
    configs.back().statistics_every = 0;  // they would count as time of the backward pass
  }
  return configs;
}

Recorder::Times train_for_a_turn(const train::Config& config, const train::DataSplit& data, train::Team& team) {
  amp::reset();
  at::manual_seed(static_cast<uint64_t>(config.seed));
  const auto device = train::chosen_device(config.device);
  auto model = train::make_classifier(config.model, train::shape_of(data), data.classes);
  model->to(device);
  if (config.sync_batch_norm) apex::parallel::convert_syncbn_model(model);
  auto model_optimizer = train::make_optimizer(config.optimizer, model->parameters());
  auto [net, optimizer] = amp::initialize(model, model_optimizer, config.level.with(amp::InitializeOptions().verbosity(0)));
  std::optional<train::TorchAmp> torch_amp;
  if (config.torch_amp) torch_amp.emplace(*config.torch_amp, device);
  const auto forward = team.join(net, config);
  const train::Training training{net, forward, *optimizer, torch_amp ? &*torch_amp : nullptr};
  Recorder recorder(device);
  int64_t step = 0;
  for (int64_t epoch = 0; step < kSteps; ++epoch) {
    train::train_epoch(config, data, device, epoch, training, team, recorder,
                       [&](const train::StepLog&) { return ++step < kSteps; });
  }
  return recorder.median_times();
}

}  // namespace

int run_turns(const Options& options) {
  const auto configs = configs_in(options.turns);
  const auto data = train::load_data(configs.at(0).data);
  if (configs[0].threads > 0) at::set_num_threads(static_cast<int>(configs[0].threads));
  const auto team = make_team();
  std::string rows;
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < configs.size(); ++i) {
      const auto level = (i + static_cast<size_t>(round)) % configs.size();  // no level is always the first
      const auto times = train_for_a_turn(configs[level], data, *team);
      rows += apex::csv_row(round, level, times.forward, times.backward, times.optimizer);
    }
  }
  amp::reset();
  if (team->leads()) common::write_whole(options.turns + "/turns.csv", rows);
  return train::kTrained;
}

}  // namespace comparison
