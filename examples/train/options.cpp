#include "options.h"

#include "common/command_line.h"
#include "errors.h"

namespace train {
namespace {

constexpr const char* kDescription =
    "Trains a network at the opt level that CONFIG names, and leaves config, metrics and checkpoint in a run folder.\n"
    "With --resume it goes on with a run that was interrupted.";
constexpr const char* kExitCodes =
    "Exit code: 0 trained, 2 a mistake in config, arguments or files, 3 the training diverged, 1 anything else.";

void check_together(const Options& options) {
  if (options.config.empty() && options.resume.empty()) {
    throw UserError("no config given; see --help");
  }
  if (!options.resume.empty() && (options.seed || !options.run_dir.empty())) {
    throw UserError("--resume goes on in the run's own folder with its own seed: leave out --run-dir and --seed");
  }
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  common::CommandLine line("train", kDescription, kExitCodes);
  line.argument("CONFIG", "a YAML file; examples/train/configs has some", common::text(options.config));
  line.option("--run-dir DIR", "the run folder, new or empty (default: the config's run_dir, else runs/<config>-<date>)",
              common::text(options.run_dir));
  line.option("--seed N", "in place of the config's seed", common::whole_number(options.seed, 0));
  line.option("--epochs N", "in place of the config's epochs", common::whole_number(options.epochs, 1));
  line.option("--stop-after N", "stop after epoch N as if interrupted there; --resume goes on",
              common::whole_number(options.stop_after, 1));
  line.option("--resume PATH", "go on from a run folder or its checkpoint, with the config kept there (CONFIG is not read)",
              common::text(options.resume));
  options.help = line.read(arguments);
  if (options.help.empty()) {
    check_together(options);
  }
  return options;
}

}  // namespace train
