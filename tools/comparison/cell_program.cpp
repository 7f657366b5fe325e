#include "cell_program.h"

#include <cstdlib>
#include <filesystem>
#include <memory>

#include <apex_cpp/files/csv.h>

#include "cells.h"
#include "common/write_whole.h"
#include "data/load.h"
#include "examples/distributed/processes.h"
#include "layers.h"
#include "pass.h"
#include "program.h"
#include "recorder.h"
#include "state_bytes.h"
#include "training/trainer.h"

namespace comparison {
namespace {

namespace amp = apex::amp;
namespace fs = std::filesystem;

// As torchrun says it: how many there are.
bool has_company() { return std::getenv("WORLD_SIZE") != nullptr; }

void write_tables(const CellFolder& folder, const Recorder& recorder, const train::Config& config) {
  common::write_whole(folder.table("times"), recorder.times());
  common::write_whole(folder.table("memory"), recorder.memory());
  common::write_whole(folder.table("parameters"), recorder.parameters());
  const auto checkpoint = folder.run() + "/checkpoint.safetensors";
  if (!fs::exists(checkpoint)) return;  // the run diverged before
  common::write_whole(folder.table("state"), optimizer_state(checkpoint, config.optimizer.moment_storage));
  fs::remove(checkpoint);  // the largest file by far, and no one goes on from it
}

// At weights that O0 has trained, where there are any, for all levels alike.
void compare_with_reference(const CellFolder& folder, const train::Config& config, const std::string& weights,
                            double loss_scale, at::Device device) {
  const auto data = train::load_data(config.data);
  const bool trained = fs::exists(weights);
  const PassSetup setup{config, data, trained ? weights : "", device};
  const auto reference = make_pass(setup, amp::OptLevel("O0"), 1);
  const auto pass = make_pass(setup, {config.level, config.torch_amp}, loss_scale, folder.table("trace"));
  const auto tables = compare_layers(reference, pass, loss_scale);
  common::write_whole(folder.table("layers"), tables.layers);
  common::write_whole(folder.table("exponents"), tables.exponents);
  common::write_whole(folder.table("pass"),
                      "loss_scale,weights\n" + apex::csv_row(loss_scale, trained ? "trained" : "initial"));
}

}  // namespace

std::unique_ptr<train::Team> make_team() {
  return has_company() ? std::make_unique<distributed::Processes>() : std::make_unique<train::Team>();
}

int run_cell(const Options& options) {
  const CellFolder folder{fs::absolute(options.cell).string()};
  const auto config = train::read_config(folder.config());
  const auto device = train::chosen_device(config.device);
  Recorder recorder(device);
  const bool is_reference = fs::absolute(options.weights) == fs::absolute(folder.weights());
  bool leads = false;
  int code = train::kTrained;
  {
    const auto team = make_team();
    leads = team->leads();
    if (is_reference && leads) recorder.keep_weights(folder.weights());
    code = train::run_program({folder.config(), "--run-dir", folder.run()}, *team, recorder);
  }
  // A code other than 0 would have the leader stopped before it has written its tables; it tells of the divergence at its end.
  if (!leads) return code == train::kDiverged ? train::kTrained : code;
  if (code != train::kTrained && code != train::kDiverged) return code;
  if (is_reference && code == train::kDiverged) fs::remove(folder.weights());
  write_tables(folder, recorder, config);
  compare_with_reference(folder, config, options.weights, recorder.loss_scale(), device);
  return code;
}

}  // namespace comparison
