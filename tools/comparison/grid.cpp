#include "grid.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include <apex_cpp/amp/comparison.h>

#include "cells.h"
#include "config/config_keys.h"
#include "data/load.h"
#include "errors.h"
#include "models/models.h"
#include "training/optimizer.h"
#include "training/trainer.h"

namespace comparison {
namespace {

namespace fs = std::filesystem;
using apex::amp::OptLevel;
using train::ConfigKeys;
using train::TorchAmpConfig;
using train::UserError;

constexpr int64_t kMostProcesses = 256;

std::string beside(const std::string& grid, const std::string& file) { return (fs::path(grid).parent_path() / file).string(); }

bool entry_begins_with(const std::string& entry, const std::string& text) {
  const auto begin = entry.find_first_not_of(" \n");
  return begin != std::string::npos && entry.compare(begin, text.size(), text) == 0;
}

bool is_mapping(const std::string& entry) { return entry_begins_with(entry, "{"); }
bool is_torch_amp(const std::string& entry) { return entry_begins_with(entry, "{torch_amp:"); }

bool is_file(const std::string& entry) {
  const auto extension = fs::path(entry).extension();
  return extension == ".yaml" || extension == ".yml";
}

// "no amp", "autocast FP16 + GradScaler init_scale 1024"
std::string name_of(const TorchAmpConfig& torch_amp) {
  std::string name;
  if (torch_amp.autocast != "none") name = torch_amp.autocast == "float16" ? "autocast FP16" : "autocast BF16";
  if (torch_amp.grad_scaler) name += name.empty() ? "GradScaler" : " + GradScaler";
  const TorchAmpConfig usual;
  const auto add = [&name](const char* key, auto value, auto usual_value) {
    std::ostringstream number;
    number << value;
    if (value != usual_value) name += std::string(" ") + key + " " + number.str();
  };
  add("init_scale", torch_amp.init_scale, usual.init_scale);
  add("growth_factor", torch_amp.growth_factor, usual.growth_factor);
  add("backoff_factor", torch_amp.backoff_factor, usual.backoff_factor);
  add("growth_interval", torch_amp.growth_interval, usual.growth_interval);
  return name.empty() ? "no amp" : name;
}

NamedLevel level_of(const std::string& entry, const std::string& grid) {
  if (is_torch_amp(entry)) {
    const auto torch_amp = train::parse_torch_amp(entry, grid);
    return {name_of(torch_amp), train::without_amp(), torch_amp};
  }
  return train::as_user_error([&]() -> NamedLevel {
    if (is_mapping(entry)) {
      const auto level = OptLevel::from_yaml_string(entry, grid, fs::path(grid).parent_path().string());
      return {apex::amp::detail::name_in_reports(level), level};
    }
    if (is_file(entry)) {
      return {fs::path(entry).stem().string(), OptLevel::from_yaml_file(beside(grid, entry))};
    }
    return {entry, OptLevel::named(entry)};
  });
}

template <class Entry>
bool all_differ(const std::vector<Entry>& entries) {
  std::set<std::string> names;
  return std::all_of(entries.begin(), entries.end(), [&](const Entry& entry) { return names.insert(entry.name).second; });
}

bool all_differ(const std::vector<int64_t>& numbers) {
  return std::set<int64_t>(numbers.begin(), numbers.end()).size() == numbers.size();
}

// Names of folders have fewer letters than those of files: two may become one, and the cells would take each other's place.
void check_folders(const Grid& grid, const std::string& path) {
  std::map<std::string, std::string> owners;
  for (const auto& cell : cells_of(grid)) {
    const auto owner = "config '" + cell.config_name + "' at level '" + cell.level_name + "'";
    const auto [other, is_new] = owners.emplace(cell.name, owner);
    if (is_new) continue;
    throw UserError(path + ": " + other->second + " and " + owner + " would both use the folder '" + cell.name +
                    "': rename one of the two files");
  }
}

// Networks may lack what a level names.
void check_level(const NamedLevel& level, const train::Config& config, const train::DataSplit& data) {
  auto model = train::make_classifier(config.model, train::shape_of(data), data.classes);
  auto optimizer = train::make_optimizer(config.optimizer, model->parameters());
  const auto quiet = level.level.with(apex::amp::InitializeOptions().verbosity(0));
  train::as_user_error<c10::ValueError>([&] { return apex::amp::initialize(model, optimizer, quiet); },
                                        "level '" + level.name + "': ");
}

// What stands for the run's own values in a program's command.
void check_program(ConfigKeys& keys, const Grid& grid) {
  const auto& program = grid.program;
  for (const char* place : {"{level}", "{seed}", "{folder}"}) {
    keys.require(program.command.find(place) != std::string::npos, "program",
                 std::string("the command lacks ") + place +
                     "; expected a command such as ./train --level {level} --seed {seed} --out {folder}");
  }
  keys.require(program.takes_steps() == (program.steps > 0), "steps",
               program.steps > 0 ? "the command of key 'program' has no {steps}"
                                 : "missing; it replaces {steps} in the command of key 'program'");
  keys.require(grid.processes == std::vector<int64_t>{1}, "processes",
               "a program starts its processes itself: leave out the key");
  const bool all_of_amp =
      std::none_of(grid.levels.begin(), grid.levels.end(), [](const NamedLevel& level) { return level.torch_amp.has_value(); });
  keys.require(all_of_amp, "levels", "a program takes levels of amp only: torch_amp is for training configs");
}

// Builds what a cell builds first, for its errors.
void check_config(const NamedConfig& named, const Grid& grid) {
  const auto& config = named.config;
  train::chosen_device(config.device);
  const auto data = train::load_data(config.data);
  for (const auto processes : grid.processes) train::check_batch_size(config, data, processes);
  if (config.optimizer.is_sharded()) {
    throw UserError(
        "key 'optimizer.type': " + config.optimizer.type +
        " spreads its state over all processes, and this state is not compared; use FusedAdam, which makes the same steps");
  }
  // O0 last, which leaves no casts behind.
  for (auto level = grid.levels.rbegin(); level != grid.levels.rend(); ++level) check_level(*level, config, data);
}

void read_program(ConfigKeys& keys, Grid& grid, const std::string& path) {
  grid.program.directory = fs::absolute(path).parent_path().string();
  keys.text("build", grid.program.build);
  keys.text("program", grid.program.command);
  if (keys.has("steps")) keys.integer("steps", grid.program.steps, 1, 1000000000);
  check_program(keys, grid);
}

void read_configs(ConfigKeys& keys, Grid& grid, const std::string& path) {
  keys.entries("configs", "[net.yaml]", [&](const std::string& entry) {
    if (is_mapping(entry)) throw UserError("expected paths of training configs, as tools/train takes them");
    grid.configs.push_back({fs::path(entry).stem().string(), train::read_config(beside(path, entry))});
  });
  keys.require(all_differ(grid.configs), "configs", "two files have the same name: rename one, because reports use the name");
}

void read_levels(ConfigKeys& keys, Grid& grid, const std::string& path) {
  keys.entries("levels", "[O0, O2]", [&](const std::string& entry) { grid.levels.push_back(level_of(entry, path)); });
  keys.require(all_differ(grid.levels), "levels",
               "a level is listed twice; write two levels that differ in casts to separate files");
  const auto reference =
      std::find_if(grid.levels.begin(), grid.levels.end(), [](const NamedLevel& each) { return each.name == "O0"; });
  if (!keys.require(reference != grid.levels.end(), "levels", "O0 is missing: all levels are compared with it")) return;
  keys.require(reference->level == OptLevel("O0"), "levels",
               "the file named O0 holds a different level (" + apex::amp::detail::name_in_reports(reference->level) +
                   "), but all levels are compared with O0: rename the file, and list O0");
  std::rotate(grid.levels.begin(), reference, reference + 1);
}

}  // namespace

Grid read_grid(const std::string& path) {
  Grid grid;
  int64_t epochs = 0;
  train::read_keys(train::read_text(path, "grid"), path, [&](ConfigKeys& keys) {
    keys.integers("seeds", grid.seeds, 0, std::numeric_limits<int64_t>::max());
    keys.require(all_differ(grid.seeds), "seeds", "a seed is listed twice");
    keys.integers("processes", grid.processes, 1, kMostProcesses);
    keys.require(all_differ(grid.processes), "processes", "a number is listed twice");
    keys.integer("rounds", grid.rounds, 2, 1000);
    read_levels(keys, grid, path);
    if (keys.has("program")) {
      read_program(keys, grid, path);
    } else {
      keys.integer("epochs", epochs, 0, 1000000);
      read_configs(keys, grid, path);
    }
  });
  check_folders(grid, path);
  for (auto& named : grid.configs) {
    named.config.epochs = epochs > 0 ? epochs : named.config.epochs;
    try {
      check_config(named, grid);
    } catch (const UserError& error) {
      throw UserError(path + ": config '" + named.name + "': " + error.what());
    }
  }
  return grid;
}

}  // namespace comparison
