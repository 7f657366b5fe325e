// The command line parser of the programs.
#include "common/command_line.h"

#include <optional>

#include <gtest/gtest.h>

#include "tests/errors.h"

namespace {

using apex::test::message_of;
using common::UserError;

// A command line with one of each kind.
struct SmallProgram {
  std::string file = "default";
  std::vector<std::string> rest;
  std::string out;
  std::string device = "cpu";
  std::optional<int64_t> seed;
  int rounds = 25;
  bool all = false;

  std::string read(const std::vector<std::string>& arguments) {
    common::CommandLine line("program", "What it does.", "What it answers.");
    line.argument("FILE", "a file", common::text(file));
    line.arguments("REST", "more files", common::texts(rest));
    line.option("--out DIR", "where to", common::text(out));
    line.option("--device D", "where", common::one_of(device, {"cpu", "cuda"}));
    line.option("--seed N", "where chance begins", common::whole_number(seed, 0));
    line.option("--rounds N", "how often", common::whole_number(rounds, 3, 100));
    line.flag("--all", "everything", all);
    return line.read(arguments);
  }

  std::string error(const std::vector<std::string>& arguments) {
    return message_of<UserError>([&] { read(arguments); });
  }
};

TEST(CommandLine, ReadsEveryKindInAnyOrder) {
  SmallProgram program;
  EXPECT_EQ(program.read({"--all", "a", "--rounds=7", "b", "--device", "cuda", "c", "--seed", "9223372036854775807"}), "");
  EXPECT_EQ(program.file, "a");
  EXPECT_EQ(program.rest, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(program.device, "cuda");
  EXPECT_EQ(program.seed, INT64_MAX);
  EXPECT_EQ(program.rounds, 7);
  EXPECT_TRUE(program.all);
}

TEST(CommandLine, OptionsThatAreNotGivenKeepTheirValues) {
  SmallProgram program;
  EXPECT_EQ(program.read({}), "");
  EXPECT_EQ(program.file, "default");
  EXPECT_EQ(program.device, "cpu");
  EXPECT_FALSE(program.seed);
  EXPECT_EQ(program.rounds, 25);
  EXPECT_FALSE(program.all);
}

TEST(CommandLine, TheLastOfARepeatedOptionCounts) {
  SmallProgram program;
  EXPECT_EQ(program.read({"--rounds", "7", "--rounds", "8"}), "");
  EXPECT_EQ(program.rounds, 8);
}

TEST(CommandLine, HelpListsEverything) {
  const auto help = SmallProgram().read({"a", "--help"});
  for (const auto* part : {"What it does.", "program", "FILE", "a file", "REST", "--device D", "where", "--seed N",
                           "--rounds N", "--all", "everything", "-h,--help", "What it answers."}) {
    EXPECT_NE(help.find(part), std::string::npos) << part << " is not in\n" << help;
  }
  EXPECT_EQ(SmallProgram().read({"-h"}), help);
}

TEST(CommandLine, ErrorsNameOptionValueAndAllowedValues) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--sed", "3"}, "unknown option '--sed'; see --help"},
      {{"--sed=3"}, "unknown option '--sed=3'; see --help"},
      {{"--device", "tpu"}, "--device takes cpu or cuda, not 'tpu'; see --help"},
      {{"--seed", "-1"}, "--seed takes a whole number of at least 0, not '-1'; see --help"},
      {{"--seed=0x10"}, "--seed takes a whole number of at least 0, not '0x10'; see --help"},
      {{"--seed", "9223372036854775808"}, "--seed takes a whole number of at least 0, not '9223372036854775808'; see --help"},
      {{"--rounds", "2"}, "--rounds takes a whole number from 3 to 100, not '2'; see --help"},
      {{"--rounds", "1e1"}, "--rounds takes a whole number from 3 to 100, not '1e1'; see --help"},
      {{"--rounds="}, "--rounds: 1 required N missing; see --help"},
      {{"--out", ""}, "--out takes a name or a path, not ''; see --help"},
      {{"--out="}, "--out: 1 required DIR missing; see --help"},
      {{""}, "FILE takes a name or a path, not ''; see --help"},
      {{"a", ""}, "REST takes names or paths, not ''; see --help"},
      {{"a", "--rounds"}, "--rounds: 1 required N missing; see --help"},
  };
  for (const auto& [arguments, message] : cases) EXPECT_EQ(SmallProgram().error(arguments), message);
}

}  // namespace
