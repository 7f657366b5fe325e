#include "program.h"

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>

#include <ATen/Parallel.h>
#include <unistd.h>

#include "common/counted.h"
#include "common/progress.h"
#include "config/config.h"
#include "data/load.h"
#include "errors.h"
#include "logging/run_folder.h"
#include "options.h"
#include "training/climbing.h"
#include "training/epoch.h"
#include "training/trainer.h"

namespace train {
namespace {

// The config in force: the file's, or the run folder's own, with the command line's changes.
Config config_for(const Options& options, const std::string& path) {
  auto config = read_config(path);
  config.seed = options.seed.value_or(config.seed);
  config.epochs = options.epochs.value_or(config.epochs);
  config.run_dir = options.run_dir.empty() ? config.run_dir : options.run_dir;
  // A run may be gone on with from any working directory.
  if (!config.data.dir.empty()) config.data.dir = std::filesystem::absolute(config.data.dir).string();
  config.climb_to = findable_anywhere(config.climb_to);
  return config;
}

// Settles device and number of threads for good: sums depend on them, so the run folder has to know.
void settle_machine(Config& config) {
  config.device = chosen_device(config.device).is_cuda() ? "cuda" : "cpu";
  if (config.threads > 0) {
    at::set_num_threads(static_cast<int>(config.threads));
  }
  config.threads = at::get_num_threads();
}

// The leader makes or finds the folder, and all work with it; others are kept out while the leader has it.
RunFolder folder_for(const Options& options, const Config& config, const std::string& config_path, Team& team) {
  std::optional<RunFolder> kept;
  const auto path = team.of_leader([&] {
    kept = options.resume.empty() ? RunFolder::create(config.run_dir, config_path) : RunFolder::open(options.resume);
    return kept->path();
  });
  return kept.value_or(RunFolder::at(path));
}

std::string first_line(const Options& options, const Config& config, const DataSplit& data, const RunFolder& folder,
                       const Team& team) {
  const auto count = [](int64_t number, const char* what) { return std::to_string(number) + what; };
  return (options.resume.empty() ? "run folder " : "continuing in ") + folder.path() + ", " +
         count(data.train.size(), " training and ") + count(data.test.size(), " test images, ") +
         (team.size() == 1 ? ""
                           : count(team.size(), " processes with batches of ") +
                                 common::counted(images_per_process(config, team), "image") + " and ") +
         common::counted(config.threads, "thread");
}

int finish(const Outcome& outcome, const RunFolder& folder, common::Progress& progress) {
  const auto& last = outcome.last;
  progress.line("test accuracy " + percent(last.accuracy()) + " (" + std::to_string(last.correct) + "/" +
                std::to_string(last.tested) + ") after " + common::counted(outcome.epochs, "epoch") + ", " +
                common::counted(outcome.skipped, "step") + " skipped; run folder " + folder.path());
  if (outcome.divergence.empty()) {
    return kTrained;
  }
  std::cerr << "training diverged: " << outcome.divergence << '\n';
  return kDiverged;
}

int run(const std::vector<std::string>& arguments, Team& team, Observer& observer) {
  const auto options = parse_options(arguments);
  if (!options.help.empty()) {
    std::cout << options.help;
    return kTrained;
  }
  const bool resume = !options.resume.empty();
  const auto path = resume ? RunFolder::find(options.resume).config() : options.config;
  auto config = config_for(options, path);
  settle_machine(config);
  levels_to_climb(config);  // refuses what is no level before anything is begun
  const auto data = load_data(config.data);
  check_batch_size(config, data, team.size());
  const auto folder = folder_for(options, config, path, team);
  std::ostream nowhere(nullptr);
  common::Progress progress(team.leads() ? std::cout : nowhere,
                            team.leads() ? common::terminal_of(STDOUT_FILENO) : common::Terminal{});
  progress.line(first_line(options, config, data, folder, team));
  return finish(train(config, data, folder, resume, options.stop_after, team, observer, progress), folder, progress);
}

int complain(const std::string& message, ExitCode code) {
  std::cerr << message << '\n';
  return code;
}

std::string in_one_line(std::string message) {
  for (auto& letter : message) {
    letter = letter == '\n' ? ' ' : letter;
  }
  return message;
}

}  // namespace

int run_program(int argc, char** argv, Team& team) {
  Observer nobody;
  return run_program({argv + 1, argv + argc}, team, nobody);
}

int run_program(const std::vector<std::string>& arguments, Team& team, Observer& observer) {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // cuBLAS is deterministic only with it
  try {
    return run(arguments, team, observer);
  } catch (...) {
    return complain();
  }
}

int complain() {
  try {
    throw;
  } catch (const UserError& error) {
    return complain(error.what(), kUserError);
  } catch (const c10::Error& error) {
    return complain(in_one_line(error.what_without_backtrace()), kFailed);
  } catch (const std::exception& error) {
    return complain(in_one_line(error.what()), kFailed);
  }
}

}  // namespace train
