#include "options.h"

#include "common/command_line.h"
#include "errors.h"

namespace train {
namespace {

constexpr const char* kDescription =
    "Trains a network at the opt level that CONFIG names, and writes config, metrics and checkpoint to a run folder.\nWith "
    "--resume it continues an interrupted run.";
constexpr const char* kExitCodes =
    "Exit code: 0 trained, 2 an error in config, arguments or files, 3 the training diverged, 1 any other failure.";

void check_together(const Options& options) {
  if (options.config.empty() && options.resume.empty()) {
    throw UserError("no config given; see --help");
  }
  if (!options.resume.empty() && (options.seed || !options.run_dir.empty())) {
    throw UserError("--resume continues in the run's folder with its seed: leave out --run-dir and --seed");
  }
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  common::CommandLine line("train", kDescription, kExitCodes);
  line.argument("CONFIG", "a YAML file; examples/train/configs has some", common::text(options.config));
  line.option("--run-dir DIR", "the run folder, new or empty (default: the config's run_dir, else runs/<config>-<date>)",
              common::text(options.run_dir));
  line.option("--seed N", "instead of the config's seed", common::whole_number(options.seed, 0));
  line.option("--epochs N", "instead of the config's epochs", common::whole_number(options.epochs, 1));
  line.option("--stop-after N", "stop after epoch N as if interrupted; --resume continues",
              common::whole_number(options.stop_after, 1));
  line.option("--resume PATH",
              "continue from a run folder or its checkpoint, with the config stored there (CONFIG is not read)",
              common::text(options.resume));
  options.help = line.read(arguments);
  if (options.help.empty()) {
    check_together(options);
  }
  return options;
}

}  // namespace train
