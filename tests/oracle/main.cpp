// oracle_replay [--cases DIR] [--tables DIR] [--only PATTERNS] [--repairs FILE] [--expect-all-repairs]
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>

#include "tests/oracle/replay.h"

namespace {

constexpr int kUsageError = 2;
constexpr const char* kUsage =
    "usage: oracle_replay [--cases DIR] [--tables DIR] [--only PATTERNS] [--repairs FILE] [--expect-all-repairs]\n"
    "  --cases DIR      replays every folder of DIR that holds a case.json\n"
    "  --tables DIR     replays the tables (*.json) of DIR\n"
    "  --only PATTERNS  only cases or tables whose name matches one of the comma-separated patterns (*, ?)\n"
    "  --repairs FILE   where the library is meant to differ from the recording, in place of tests/oracle/repairs.json\n"
    "  --expect-all-repairs  an entry of that file that matches nothing is a failure\n";

struct Arguments {
  std::optional<std::string> cases;
  std::optional<std::string> tables;
  std::optional<std::string> repairs;
  std::string only = "*";
  bool expect_all_repairs = false;
};

std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--expect-all-repairs") {
      arguments.expect_all_repairs = true;
      --i;
      continue;
    }
    if (i + 1 >= argc) return std::nullopt;
    if (name == "--cases") {
      arguments.cases = argv[i + 1];
    } else if (name == "--tables") {
      arguments.tables = argv[i + 1];
    } else if (name == "--repairs") {
      arguments.repairs = argv[i + 1];
    } else if (name == "--only") {
      arguments.only = argv[i + 1];
    } else {
      return std::nullopt;
    }
  }
  if (!arguments.cases && !arguments.tables) return std::nullopt;
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = parse(argc, argv);
  if (!arguments) {
    std::cerr << kUsage;
    return kUsageError;
  }
  oracle::use_recorded_arithmetic();
  try {
    oracle::Report report(arguments->repairs ? oracle::Repairs::from_file(*arguments->repairs) : oracle::Repairs::standard());
    if (arguments->cases) oracle::replay_cases(*arguments->cases, arguments->only, report);
    if (arguments->tables) oracle::replay_tables(*arguments->tables, arguments->only, report);
    return report.summary(arguments->expect_all_repairs);
  } catch (const std::exception& error) {
    std::cerr << "oracle_replay: " << error.what() << "\n";
    return kUsageError;
  }
}
