// The oracle replayer as a program; --help lists the options.
#include <iostream>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "tests/oracle/replay.h"

namespace {

constexpr int kUsageError = 2;

struct Arguments {
  std::string cases;
  std::string tables;
  std::string repairs;
  std::string only = "*";
  bool expect_all_repairs = false;
  bool expect_all_checks = false;
  std::string help;  // the text to print in place of replaying; empty: it was not asked for
};

Arguments parse(const std::vector<std::string>& words) {
  Arguments arguments;
  common::CommandLine line("oracle_replay", "Replays what was recorded from Apex against the library.");
  line.option("--cases DIR", "replays every folder of DIR that holds a case.json", common::text(arguments.cases));
  line.option("--tables DIR", "replays the tables (*.json) of DIR", common::text(arguments.tables));
  line.option("--only PATTERNS", "only cases or tables whose name matches one of the comma-separated patterns (*, ?)",
              common::text(arguments.only));
  line.option("--repairs FILE",
              "where the library is meant to differ from the recording, in place of tests/oracle/repairs.json",
              common::text(arguments.repairs));
  line.flag("--expect-all-repairs", "an entry of that file that matches nothing is a failure", arguments.expect_all_repairs);
  line.flag("--expect-all-checks", "a check that could not be made is a failure", arguments.expect_all_checks);
  arguments.help = line.read(words);
  if (arguments.help.empty() && arguments.cases.empty() && arguments.tables.empty()) {
    throw common::UserError("nothing to replay: give --cases or --tables; see --help");
  }
  return arguments;
}

int replay(const Arguments& arguments) {
  oracle::use_recorded_arithmetic();
  oracle::Report report(arguments.repairs.empty() ? oracle::Repairs::standard()
                                                  : oracle::Repairs::from_file(arguments.repairs));
  if (!arguments.cases.empty()) oracle::replay_cases(arguments.cases, arguments.only, report);
  if (!arguments.tables.empty()) oracle::replay_tables(arguments.tables, arguments.only, report);
  return report.summary(arguments.expect_all_repairs, arguments.expect_all_checks);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto arguments = parse({argv + 1, argv + argc});
    if (arguments.help.empty()) return replay(arguments);
    std::cout << arguments.help;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "oracle_replay: " << error.what() << "\n";
    return kUsageError;
  }
}
