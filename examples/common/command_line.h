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

/// Stores the text of an argument. Returns an empty string on success, otherwise a description of valid values ("a whole number
/// from 1 to 9").
using Taker = std::function<std::string(const std::string& text)>;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// A name or a path. Rejects an empty text, which usually comes from an unset variable in a script.
Taker text(std::string& target);
/// Appends the text of an argument that may be given several times.
Taker texts(std::vector<std::string>& target);
/// One of `choices`.
Taker one_of(std::string& target, std::vector<std::string> choices);
/// A decimal number from `low` to `high`, passed to `take`.
Taker whole_number(int64_t low, int64_t high, std::function<void(int64_t)> take);

template <class Target>
Taker whole_number(Target& target, int64_t low, int64_t high = kNoLimit) {
  return whole_number(low, high, [&target](int64_t value) { target = static_cast<Target>(value); });
}

/// Describes and parses a program's command line. Wraps CLI11 in an interface that compiles quickly.
class CommandLine {
 public:
  /// `description` and `footer` begin and end the help text.
  CommandLine(const std::string& program, const std::string& description, const std::string& footer = "");
  ~CommandLine();

  /// An optional positional argument; `name` is for the help text.
  void argument(const std::string& name, const std::string& help, const Taker& taker);
  /// Any number of positional arguments.
  void arguments(const std::string& name, const std::string& help, const Taker& taker);
  /// `name_and_kind` is "--name KIND". Users write `--name value` or `--name=value`; the last one wins.
  void option(const std::string& name_and_kind, const std::string& help, const Taker& taker);
  /// `name` is "--name". Sets `target` if the flag is given.
  void flag(const std::string& name, const std::string& help, bool& target);

  /// Parses the arguments (without the program's name) into their targets. Returns the help text if --help is given, otherwise
  /// an empty string. Throws UserError, which names the argument, its value and the valid values.
  std::string read(std::vector<std::string> arguments);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace common
