#include "options.h"

#include <algorithm>
#include <regex>

#include "common/command_line.h"

namespace bench {
namespace {

constexpr int kFewestRounds = 3;
constexpr int kMostRounds = 100000;

common::Taker regular_expression(std::string& target) {
  return [&target](const std::string& text) {
    try {
      const std::regex valid(text);
    } catch (const std::regex_error& error) {
      return std::string("a regular expression (") + error.what() + ")";
    }
    return target = text, std::string();
  };
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const std::vector<std::string>& suites_for_gpus() {
  static const std::vector<std::string> names{"contrib", "kernels", "statistics", "step", "train"};
  return names;
}

}  // namespace

void check_device(const Options& options, bool has_gpu) {
  if (options.device == "cpu") return;
  const auto& names = suites_for_gpus();
  if (std::find(names.begin(), names.end(), options.suite) == names.end()) {
    throw common::UserError("suite '" + options.suite + "' measures the CPU: leave out --device " + options.device +
                            ", or take one of " + joined(names));
  }
  if (!has_gpu) {
    throw common::UserError("--device " + options.device + " was asked for, but LibTorch finds no GPU; take cpu");
  }
}

Options parse_options(const std::vector<std::string>& arguments, const std::string& suites) {
  Options options;
  common::CommandLine line(
      "tools/bench", "Measures variants of the same work by turns, in one process, and prints the medians over the rounds.",
      suites);
  line.argument("SUITE", "one of those below", common::text(options.suite));
  line.option("--rounds N",
              "rounds of every benchmark, at least " + std::to_string(kFewestRounds) + " (default: 25, or what the suite says)",
              common::whole_number(options.rounds, kFewestRounds, kMostRounds));
  line.option("--only REGEX", "only benchmarks whose group/name contains a match", regular_expression(options.only));
  line.option("--device D", "where the tensors are: cpu (default) or cuda, for " + joined(suites_for_gpus()),
              common::one_of(options.device, {"cpu", "cuda"}));
  line.flag("--quick", "train: small networks, to see in seconds that everything runs", options.quick);
  line.option("--csv FILE", "also write every number to FILE", common::text(options.csv));
  options.help = line.read(arguments);
  if (options.help.empty() && options.suite.empty()) {
    throw common::UserError("name a suite; see --help");
  }
  return options;
}

}  // namespace bench
