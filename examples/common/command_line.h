#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/user_error.h"

namespace CLI {
class App;
}

namespace common {

/// Takes over the text of an argument. Answers what the argument takes ("a whole number from 1 to 9") where it is not that, and
/// nothing where it is.
using Taker = std::function<std::string(const std::string& text)>;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// A name or a path. An empty one is a mistake: what a script passes whose variable is not set, not an argument left out.
Taker text(std::string& target);
/// The texts of an argument that may be given several times.
Taker texts(std::vector<std::string>& target);
/// One of `choices`.
Taker one_of(std::string& target, std::vector<std::string> choices);
/// A decimal number from `low` to `high`, handed to `take`.
Taker whole_number(int64_t low, int64_t high, std::function<void(int64_t)> take);

template <class Target>
Taker whole_number(Target& target, int64_t low, int64_t high = kNoLimit) {
  return whole_number(low, high, [&target](int64_t value) { target = static_cast<Target>(value); });
}

/// What a program takes on its command line: CLI11 behind an interface that is quick to compile.
class CommandLine {
 public:
  /// `description` and `footer` stand at the beginning and at the end of the help text.
  CommandLine(const std::string& program, const std::string& description, const std::string& footer = "");
  ~CommandLine();

  /// An argument that has its meaning by its place and may be left out; `name` is for the help text.
  void argument(const std::string& name, const std::string& help, const Taker& taker);
  /// Any number of them.
  void arguments(const std::string& name, const std::string& help, const Taker& taker);
  /// "--name KIND": written `--name value` or `--name=value`; of several the last one counts.
  void option(const std::string& name_and_kind, const std::string& help, const Taker& taker);
  /// "--name", set where it is given.
  void flag(const std::string& name, const std::string& help, bool& target);

  /// Reads the arguments (without the program's name) into their targets. Answers the help text where --help is one of them,
  /// and nothing otherwise. Throws UserError, which names the argument, its value and what it takes.
  std::string read(std::vector<std::string> arguments);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace common
