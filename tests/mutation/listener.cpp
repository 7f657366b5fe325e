// Part of every GoogleTest program of mutation.py's build. Appends to the file APEX_MUTANTS_CASES which mutants each test case
// reaches, in lines FILTER SECONDS NUMBER..., where the filter is SUITE.NAME; SUITE.* for what the suite's set-up reaches; *
// for what is outside of suites.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/mutation/mutants.h"

namespace {

using namespace apex_mutants;

class ReachedByCases : public testing::EmptyTestEventListener {
  // Only this program's cases are noted, not those of programs that they start. Those reach mutants of the same cases.
  void OnTestProgramStart(const testing::UnitTest&) override {
    const char* path = std::getenv("APEX_MUTANTS_CASES");
    if (!path) return;
    path_ = path;
    ::unsetenv("APEX_MUTANTS_CASES");
    read_environment();
    note("*", 0);
  }
  void OnTestStart(const testing::TestInfo& test) override { note(std::string(test.test_suite_name()) + ".*", 0); }
  void OnTestEnd(const testing::TestInfo& test) override {
    note(std::string(test.test_suite_name()) + "." + test.name(), static_cast<double>(test.result()->elapsed_time()) / 1000);
  }
  void OnTestProgramEnd(const testing::UnitTest&) override { note("*", 0); }

  // Writes the mutants reached since the last call, and forgets them. A rank has bytes of its own: others may be in another
  // case.
  void note(const std::string& filter, double seconds) {
    unsigned char* const all = __atomic_load_n(&by_ranks, __ATOMIC_RELAXED);
    if (path_.empty() || !all) return;
    const bool is_rank = std::getenv("RANK") != nullptr;
    unsigned char* const bytes = is_rank ? all + rank() * kLimit : all;
    std::ostringstream line;
    line << filter << ' ' << seconds;
    for (int at = 0; at < (is_rank ? kLimit : kRanks * kLimit); ++at) {
      if (__atomic_exchange_n(bytes + at, 0, __ATOMIC_RELAXED)) line << ' ' << at % kLimit;
    }
    line << '\n';
    std::ofstream(path_, std::ios::app) << line.str() << std::flush;
  }

  std::string path_;
};

const bool is_listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new ReachedByCases);
  return true;
}();

}  // namespace
