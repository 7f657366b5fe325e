// Trains an image classifier at the opt level that a YAML file names. See `train --help`.
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <ATen/Parallel.h>
#include <unistd.h>

#include "common/progress.h"
#include "config.h"
#include "data/load.h"
#include "errors.h"
#include "options.h"
#include "run_folder.h"
#include "trainer.h"

namespace {

enum ExitCode { kTrained = 0, kFailed = 1, kUserError = 2, kDiverged = 3 };

// The config in force: the file's, or the run folder's own, with the command line's changes.
train::Config config_for(const train::Options& options, const std::string& path) {
  auto config = train::read_config(path);
  config.seed = options.seed.value_or(config.seed);
  config.epochs = options.epochs.value_or(config.epochs);
  config.run_dir = options.run_dir.empty() ? config.run_dir : options.run_dir;
  return config;
}

// Settles device and number of threads for good: sums depend on them, so the run folder has to know.
void settle_machine(train::Config& config) {
  config.device = train::chosen_device(config.device).is_cuda() ? "cuda" : "cpu";
  if (config.threads > 0) {
    at::set_num_threads(static_cast<int>(config.threads));
  }
  config.threads = at::get_num_threads();
}

int finish(const train::Outcome& outcome, const train::RunFolder& folder, common::Progress& progress) {
  const auto& last = outcome.last;
  progress.line("test accuracy " + train::percent(last.accuracy()) + " (" + std::to_string(last.correct) + "/" +
                std::to_string(last.tested) + ") after " + std::to_string(outcome.epochs) + " epochs, " +
                std::to_string(outcome.skipped) + " steps skipped; run folder " + folder.path());
  if (outcome.divergence.empty()) {
    return kTrained;
  }
  std::cerr << "training diverged: " << outcome.divergence << '\n';
  return kDiverged;
}

int run(const std::vector<std::string>& arguments) {
  const auto options = train::parse_options(arguments);
  if (!options.help.empty()) {
    std::cout << options.help;
    return kTrained;
  }
  const bool resume = !options.resume.empty();
  const auto path = resume ? train::RunFolder::open(options.resume).config() : options.config;
  auto config = config_for(options, path);
  settle_machine(config);
  const auto data = train::load_data(config.data);
  const auto folder = resume ? train::RunFolder::open(options.resume) : train::RunFolder::create(config.run_dir, path);
  train::write_whole(folder.config(), train::to_yaml(config));

  common::Progress progress(std::cout, common::terminal_of(STDOUT_FILENO));
  progress.line(std::string(resume ? "going on in " : "run folder ") + folder.path() + ", " +
                std::to_string(data.train.size()) + " training and " + std::to_string(data.test.size()) + " test images, " +
                std::to_string(config.threads) + " threads");
  return finish(train::train(config, data, folder, resume, options.stop_after, progress), folder, progress);
}

int complain(std::string message, ExitCode code) {
  for (auto& letter : message) {
    letter = letter == '\n' ? ' ' : letter;
  }
  std::cerr << message << '\n';
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // cuBLAS is deterministic only with it
  try {
    return run({argv + 1, argv + argc});
  } catch (const train::UserError& error) {
    return complain(error.what(), kUserError);
  } catch (const c10::Error& error) {
    return complain(error.what_without_backtrace(), kFailed);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailed);
  }
}
