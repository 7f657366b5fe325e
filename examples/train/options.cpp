#include "options.h"

#include <charconv>

#include "errors.h"

namespace train {
namespace {

int64_t whole_number(const std::string& option, const std::string& text, int64_t low) {
  int64_t value = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < low) {
    throw UserError(option + ": expected an integer of at least " + std::to_string(low) + ", got '" + text + "'");
  }
  return value;
}

void take_value(Options& options, const std::string& name, const std::string& value) {
  if (name == "--resume") {
    options.resume = value;
  } else if (name == "--run-dir") {
    options.run_dir = value;
  } else if (name == "--seed") {
    options.seed = whole_number(name, value, 0);
  } else if (name == "--epochs") {
    options.epochs = whole_number(name, value, 1);
  } else if (name == "--stop-after") {
    options.stop_after = whole_number(name, value, 1);
  } else {
    throw UserError("unknown option '" + name + "'; see --help");
  }
}

void check(const Options& options) {
  if (options.config.empty() && options.resume.empty()) {
    throw UserError("no config given; see --help");
  }
  if (!options.resume.empty() && (options.seed || !options.run_dir.empty())) {
    throw UserError("--resume goes on in the run's own folder with its own seed: leave out --run-dir and --seed");
  }
}

}  // namespace

const char* usage() {
  return "usage: train CONFIG.yaml [options]\n"
         "       train --resume RUN_DIR [options]\n"
         "Trains a network at the opt level that the config names, and leaves config, metrics and checkpoint in a run folder.\n"
         "  --run-dir DIR     the run folder, new or empty (default: the config's run_dir, else runs/<config>-<date>)\n"
         "  --seed N          in place of the config's seed\n"
         "  --epochs N        in place of the config's epochs\n"
         "  --stop-after N    stop after epoch N as if interrupted there; --resume goes on\n"
         "  --resume PATH     go on from a run folder or its checkpoint, with the config kept there (CONFIG is not read)\n"
         "  --help            this text\n"
         "Exit code: 0 trained, 2 a mistake in config, arguments or files, 3 the training diverged, 1 anything else.\n";
}

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      options.help = true;
      return options;
    }
    if (argument.rfind("-", 0) != 0) {
      if (!options.config.empty()) {
        throw UserError("two configs given: '" + options.config + "' and '" + argument + "'");
      }
      options.config = argument;
      continue;
    }
    const auto equals = argument.find('=');
    if (equals != std::string::npos) {
      take_value(options, argument.substr(0, equals), argument.substr(equals + 1));
    } else if (i + 1 < arguments.size()) {
      take_value(options, argument, arguments[++i]);
    } else {
      throw UserError("option '" + argument + "' needs a value or is unknown; see --help");
    }
  }
  check(options);
  return options;
}

}  // namespace train
