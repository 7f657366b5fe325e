#include "options.h"

#include <regex>

#include "common/command_line.h"
#include "suites.h"

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

std::string suites_that_take(Takes option) {
  std::string names;
  for (const auto& suite : suites())
    if (suite.takes & option) names += (names.empty() ? "" : ", ") + std::string(suite.name);
  return names;
}

void check_suite(const std::string& name, Takes option, const std::string& but, const std::string& given) {
  for (const auto& suite : suites())
    if (suite.name == name && suite.takes & option) return;
  throw common::UserError("suite '" + name + "' " + but + ": leave out " + given + ", or take one of " +
                          suites_that_take(option));
}

}  // namespace

void check_suite(const Options& options, bool has_gpu) {
  if (options.quick) check_suite(options.suite, kQuick, "trains no network", "--quick");
  if (options.device == "cpu") return;
  check_suite(options.suite, kDevice, "measures the CPU", "--device " + options.device);
  if (!has_gpu) {
    throw common::UserError("--device " + options.device + " needs a GPU, but LibTorch finds none; use cpu");
  }
}

Options parse_options(const std::vector<std::string>& arguments, const std::string& suites) {
  Options options;
  common::CommandLine line(
      "tools/bench", "Measures variants of the same work in turn, in one process, and prints the medians over the rounds.",
      suites);
  line.argument("SUITE", "one of the suites below", common::text(options.suite));
  line.option("--rounds N",
              "rounds of each benchmark, at least " + std::to_string(kFewestRounds) +
                  " (default: 25, or the number that the suite names)",
              common::whole_number(options.rounds, kFewestRounds, kMostRounds));
  line.option("--only REGEX", "only benchmarks whose group/name contains a match", regular_expression(options.only));
  line.option("--device D", "where the tensors are: cpu (default) or cuda, for " + suites_that_take(kDevice),
              common::one_of(options.device, {"cpu", "cuda"}));
  line.flag("--quick", "small networks, for " + suites_that_take(kQuick) + ": a check of a few seconds that everything runs",
            options.quick);
  line.option("--csv FILE", "also write every number to FILE", common::text(options.csv));
  options.help = line.read(arguments);
  if (options.help.empty() && options.suite.empty()) {
    throw common::UserError("name a suite; see --help");
  }
  return options;
}

}  // namespace bench
