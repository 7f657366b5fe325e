// distributed_tests --ranks N [GoogleTest's flags]: N copies of this program run the same tests in the same order, as the ranks
// of one process group. If a test fails on one rank, all end.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include <apex_cpp/parallel/processes/process_group.h>
#include "tests/distributed/launcher.h"

namespace {

constexpr int kTimeoutSeconds = 60;
constexpr int kGraceSeconds = 15;

int start_ranks(int count, std::vector<std::string> command) {
  command[0] = apex::testing::this_program();
  apex::testing::Ranks ranks(count, command);
  ranks.wait(kGraceSeconds);
  std::cout << (ranks.all_succeeded() ? ranks[0].output() : ranks.outputs()) << std::flush;
  return ranks.all_succeeded() ? EXIT_SUCCESS : EXIT_FAILURE;
}

// The others wait in a collective operation that the failed rank may never reach.
class EndWithTheFirstFailure : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->Failed()) return;
    std::cout << "this rank ends: its test failed" << std::endl;
    std::_Exit(EXIT_FAILURE);
  }
};

int run_as_rank() {
  using namespace apex::parallel;
  init_process_group(ProcessGroupOptions().backend("gloo").timeout(std::chrono::seconds(kTimeoutSeconds)));
  testing::UnitTest::GetInstance()->listeners().Append(new EndWithTheFirstFailure);
  const int result = RUN_ALL_TESTS();
  default_process_group()->barrier()->wait();  // rank 0 serves the store until all ranks are done
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> command(argv, argv + argc);
  if (argc > 2 && command[1] == "--ranks") {
    const int count = std::stoi(command[2]);
    command.erase(command.begin() + 1, command.begin() + 3);
    return start_ranks(count, command);
  }
  testing::InitGoogleTest(&argc, argv);
  return std::getenv("RANK") ? run_as_rank() : start_ranks(2, command);
}
