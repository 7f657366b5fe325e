#include "tools/doctor/doctor_program.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <initializer_list>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <apex_cpp/amp.h>
#include <apex_cpp/amp/doctor.h>

#include "common/command_line.h"
#include "common/progress.h"
#include "common/write_whole.h"
#include "config/config.h"
#include "data/load.h"
#include "errors.h"
#include "models/models.h"
#include "program.h"
#include "training/epoch.h"
#include "training/observer.h"
#include "training/optimizer.h"
#include "training/trainer.h"

namespace doctor {
namespace {

namespace amp = apex::amp;

struct Arguments {
  std::string config, level, yaml, help;
  int64_t steps = 50;
};

Arguments arguments_of(const std::vector<std::string>& words) {
  Arguments arguments;
  common::CommandLine line("tools/compare doctor",
                           "Runs the training that CONFIG describes at O0 and at another level on the same batches, names the "
                           "first operator whose inputs agree and whose outputs do not, and searches for the smallest set of "
                           "modules and operators that must stay in FP32 for the level to train.",
                           "Exit code: 0 examined, 2 an error in config, arguments or files, 1 any other failure.");
  line.argument("CONFIG", "a YAML file of examples/train", common::text(arguments.config));
  line.option("--level LEVEL", "O1 to O6 (default: the config's)", common::text(arguments.level));
  line.option("--yaml FILE", "write the level that trains to this file", common::text(arguments.yaml));
  line.option("--steps N", "train for N steps in the search (default: 50)", common::whole_number(arguments.steps, 1));
  arguments.help = line.read(words);
  if (arguments.help.empty() && arguments.config.empty()) throw train::UserError("no config given; see --help");
  return arguments;
}

// Trains as the config describes until the run has enough steps.
void train_for(const train::Config& config, const train::DataSplit& data, const amp::OptLevel& level, amp::DoctorRun& run) {
  const auto device = train::chosen_device(config.device);
  auto model = train::make_classifier(config.model, train::shape_of(data), data.classes);
  model->to(device);
  auto model_optimizer = train::make_optimizer(config.optimizer, model->parameters());
  auto [net, optimizer] = train::as_user_error<c10::ValueError>([&] { return amp::initialize(model, model_optimizer, level); });
  train::Team alone;
  train::Observer nobody;
  const auto forward = alone.join(net, config);
  const train::Training training{net, forward, *optimizer};
  bool goes_on = run.next();
  for (int64_t epoch = 0; goes_on; ++epoch) {
    train::train_epoch(config, data, device, epoch, training, alone, nobody, [&](const train::StepLog& log) {
      run.loss(log.loss);
      return goes_on = run.next();
    });
  }
}

// The config's level, with its overrides, if `name` is empty or names it; otherwise the named level.
amp::OptLevel level_for(const train::Config& config, const std::string& name) {
  if (config.torch_amp && name.empty()) {
    throw train::UserError("key 'torch_amp': the doctor examines levels, and the config has none: give a level by --level");
  }
  if (!config.torch_amp && (name.empty() || name == config.level.name())) return config.level;
  return train::as_user_error([&] { return amp::OptLevel::named(name); });
}

using Names = std::optional<std::vector<std::string>>;

std::string joined(std::initializer_list<Names> lists) {
  std::string text;
  for (const auto& names : lists) {
    for (const auto& name : names.value_or(std::vector<std::string>())) text += (text.empty() ? "" : " ") + name;
  }
  return text.empty() ? "none" : text;
}

// What FP8 breaks at the level, if the doctor repaired that.
std::string repair_of_float8(const amp::OptLevel& level, const amp::OptLevel& found) {
  if (found.overrides().fp8() != level.overrides().fp8()) return "trains without FP8: products of no module fail in FP8\n";
  if (found.overrides().bfloat16_modules() == level.overrides().bfloat16_modules()) return "";
  return "kept in bfloat16: " + joined({found.overrides().bfloat16_modules()}) + "\n";
}

// The doctor's options. Shows the purpose and the number of each run.
amp::DoctorOptions options_for(const Arguments& arguments, const train::Config& config, common::Progress& progress) {
  const auto show = [&progress, runs = int64_t{0}](const std::string& task) mutable {
    ++runs;
    progress.show({task, runs, runs, "run " + std::to_string(runs), 0});
  };
  return amp::DoctorOptions().steps(arguments.steps).seed(static_cast<uint64_t>(config.seed)).on_run(show);
}

// The message if nothing diverges: the runs that were compared.
std::string agreement(const amp::OptLevel& level, const amp::DoctorOptions& options) {
  return level.name() + " trained like " + options.reference() + " over " + std::to_string(options.steps()) +
         " steps: no operator of the first step diverges, and the loss ends within the spread of " +
         std::to_string(options.seeds()) + " seeds of " + options.reference();
}

int run(const std::vector<std::string>& words) {
  const auto arguments = arguments_of(words);
  if (!arguments.help.empty()) {
    std::cout << arguments.help;
    return 0;
  }
  if (!arguments.yaml.empty()) common::check_writable(arguments.yaml);  // before minutes of work
  const auto config = train::read_config(arguments.config);
  const auto level = level_for(config, arguments.level);
  if (config.threads > 0) at::set_num_threads(static_cast<int>(config.threads));
  at::globalContext().setDeterministicCuDNN(true);
  const auto data = train::load_data(config.data);
  train::check_batch_size(config, data, /*processes=*/1);  // with epochs of no steps a run would never end
  common::Progress progress(std::cerr, common::terminal_of(STDERR_FILENO));
  const auto options = options_for(arguments, config, progress);
  amp::Doctor examined(
      level, [&](const amp::OptLevel& at_level, amp::DoctorRun& training) { train_for(config, data, at_level, training); },
      options);
  const auto divergence = examined.first_divergence();
  const auto found = examined.minimal_float32();
  progress.clear();
  if (arguments.level.empty()) std::cout << "level: " << level.name() << ", the level of the config\n";
  if (divergence) std::cout << divergence << "\n";
  if (!divergence && found == level) std::cout << agreement(level, options) << "\n";
  const auto kept = found.overrides();
  std::cout << repair_of_float8(level, found) << "first divergence: " << divergence.place()
            << "\nkept in float32: " << joined({kept.float32_modules(), kept.float32_functions()}) << std::endl;
  if (!arguments.yaml.empty()) common::write_whole(arguments.yaml, found.to_yaml());
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (...) {
    return train::complain();
  }
}

}  // namespace doctor
