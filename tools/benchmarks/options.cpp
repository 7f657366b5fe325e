#include "options.h"

#include <charconv>
#include <regex>

namespace bench {
namespace {

constexpr int kFewestRounds = 3;
constexpr int kMostRounds = 100000;

int read_rounds(const std::string& text) {
  int rounds = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, rounds);
  if (error != std::errc() || stop != end || rounds < kFewestRounds || rounds > kMostRounds) {
    throw UsageError("--rounds takes a whole number from " + std::to_string(kFewestRounds) + " to " +
                     std::to_string(kMostRounds) + ", not '" + text + "'");
  }
  return rounds;
}

std::string read_device(const std::string& text) {
  if (text != "cpu" && text != "cuda") throw UsageError("--device takes cpu or cuda, not '" + text + "'");
  return text;
}

std::string read_regex(const std::string& text) {
  try {
    const std::regex valid(text);
  } catch (const std::regex_error& error) {
    throw UsageError("--only takes a regular expression, and '" + text + "' is none: " + error.what());
  }
  return text;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == arguments.size()) throw UsageError(argument + " needs a value");
      return arguments[++i];
    };
    if (argument == "--help" || argument == "-h") {
      options.help = true;
    } else if (argument == "--device") {
      options.device = read_device(value());
    } else if (argument == "--csv") {
      options.csv = value();
    } else if (argument == "--only") {
      options.only = read_regex(value());
    } else if (argument == "--rounds") {
      options.rounds = read_rounds(value());
    } else if (argument.empty() || argument[0] == '-') {
      throw UsageError("unknown argument '" + argument + "'");
    } else if (!options.suite.empty()) {
      throw UsageError("one suite at a time, not '" + options.suite + "' and '" + argument + "'");
    } else {
      options.suite = argument;
    }
  }
  return options;
}

}  // namespace bench
