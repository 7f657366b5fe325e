#include "common/command_line.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>

namespace common {
namespace {

constexpr size_t kHelpColumn = 28;

// CLI11's own number parser reads 0x10 as 16 and clamps values that overflow.
bool read_number(const std::string& text, int64_t& value) {
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

CLI::callback_t reader(const std::string& name, const Taker& taker) {
  return [name, taker](const CLI::results_t& words) {
    for (const auto& word : words) {
      const auto takes = taker(word);
      if (!takes.empty()) {
        throw UserError(name + " takes " + takes + ", not '" + word + "'; see --help");
      }
    }
    return true;
  };
}

// Reports an unknown option before the word behind it, which may be the option's value.
void refuse(const std::vector<std::string>& unexpected) {
  for (const auto& word : unexpected) {
    if (word.rfind("-", 0) == 0) {
      throw UserError("unknown option '" + word + "'; see --help");
    }
  }
  if (!unexpected.empty()) {
    throw UserError("unexpected argument '" + unexpected.front() + "'; see --help");
  }
}

}  // namespace

Taker text(std::string& target) {
  return [&target](const std::string& word) {
    target = word;
    return std::string(word.empty() ? "a name or a path" : "");
  };
}

Taker texts(std::vector<std::string>& target) {
  return [&target](const std::string& word) {
    target.push_back(word);
    return std::string(word.empty() ? "names or paths" : "");
  };
}

Taker one_of(std::string& target, std::vector<std::string> choices) {
  return [&target, choices = std::move(choices)](const std::string& word) {
    target = word;
    const bool known = std::find(choices.begin(), choices.end(), word) != choices.end();
    return known ? std::string() : CLI::detail::join(choices, " or ");
  };
}

Taker whole_number(int64_t low, int64_t high, std::function<void(int64_t)> take) {
  return [low, high, take = std::move(take)](const std::string& word) {
    int64_t value = 0;
    if (read_number(word, value) && value >= low && value <= high) {
      take(value);
      return std::string();
    }
    return high == kNoLimit ? "a whole number of at least " + std::to_string(low)
                            : "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  };
}

CommandLine::CommandLine(const std::string& program, const std::string& description, const std::string& footer)
    : app_(std::make_unique<CLI::App>(description, program)) {
  app_->footer(footer);
  app_->allow_extras();  // `refuse` gives a clearer message
  app_->set_help_flag("-h,--help", "Print this text");
  app_->get_formatter()->column_width(kHelpColumn);
}

CommandLine::~CommandLine() = default;

void CommandLine::argument(const std::string& name, const std::string& help, const Taker& taker) {
  app_->add_option(name, reader(name, taker), help);
}

void CommandLine::arguments(const std::string& name, const std::string& help, const Taker& taker) {
  app_->add_option(name, reader(name, taker), help)->expected(-1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void CommandLine::option(const std::string& name_and_kind, const std::string& help, const Taker& taker) {
  const auto space = name_and_kind.find(' ');
  const auto name = name_and_kind.substr(0, space);
  app_->add_option(name, reader(name, taker), help)->type_name(name_and_kind.substr(space + 1))->take_last();
}

void CommandLine::flag(const std::string& name, const std::string& help, bool& target) { app_->add_flag(name, target, help); }

std::string CommandLine::read(std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());  // CLI11 expects arguments in reverse order
  try {
    app_->parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return app_->help();
  } catch (const CLI::ParseError& error) {
    throw UserError(std::string(error.what()) + "; see --help");
  }
  refuse(app_->remaining());
  return {};
}

}  // namespace common
