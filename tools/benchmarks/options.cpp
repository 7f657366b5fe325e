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

using Names = std::vector<std::string>;

const Names& suites_for_gpus() {
  static const Names names{"contrib", "kernels", "statistics", "step", "train"};
  return names;
}

const Names& suites_of_networks() {
  static const Names names{"pages", "train"};
  return names;
}

void check_suite(const std::string& suite, const Names& names, const std::string& but, const std::string& option) {
  if (std::find(names.begin(), names.end(), suite) != names.end()) return;
  throw common::UserError("suite '" + suite + "' " + but + ": leave out " + option + ", or take one of " + joined(names));
}

}  // namespace

void check_suite(const Options& options, bool has_gpu) {
  if (options.quick) check_suite(options.suite, suites_of_networks(), "trains no network", "--quick");
  if (options.device == "cpu") return;
  check_suite(options.suite, suites_for_gpus(), "measures the CPU", "--device " + options.device);
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
  line.flag("--quick", "small networks, for " + joined(suites_of_networks()) + ": to see in seconds that everything runs",
            options.quick);
  line.option("--csv FILE", "also write every number to FILE", common::text(options.csv));
  options.help = line.read(arguments);
  if (options.help.empty() && options.suite.empty()) {
    throw common::UserError("name a suite; see --help");
  }
  return options;
}

}  // namespace bench
