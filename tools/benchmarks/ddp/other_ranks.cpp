#include "other_ranks.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "common/user_error.h"

namespace bench::ddp {
namespace {

constexpr const char* kRankVariable = "APEX_BENCH_DDP_RANK";
constexpr const char* kRanksVariable = "APEX_BENCH_DDP_RANKS";
constexpr const char* kRoundsVariable = "APEX_BENCH_DDP_ROUNDS";
constexpr const char* kStoreVariable = "APEX_BENCH_DDP_STORE";

int number(const char* name) { return std::atoi(std::getenv(name)); }

[[noreturn]] void become_rank(int rank) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv(kRankVariable, std::to_string(rank).c_str(), 1);
  const int nowhere = open("/dev/null", O_WRONLY);
  dup2(nowhere, STDOUT_FILENO);
  execl("/proc/self/exe", "bench", "ddp", static_cast<char*>(nullptr));
  _exit(EXIT_FAILURE);
}

std::string new_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "bench_ddp_XXXXXX").string();
  if (!mkdtemp(name.data())) throw common::UserError("cannot make a folder like " + name);
  return name;
}

}  // namespace

bool is_further_rank() { return std::getenv(kRankVariable) != nullptr; }

FurtherRank further_rank() {
  return {number(kRankVariable), number(kRanksVariable), number(kRoundsVariable), std::getenv(kStoreVariable)};
}

OtherRanks::OtherRanks(int ranks, int rounds) : store_(new_folder() + "/store") {
  setenv(kRanksVariable, std::to_string(ranks).c_str(), 1);
  setenv(kRoundsVariable, std::to_string(rounds).c_str(), 1);
  setenv(kStoreVariable, store_.c_str(), 1);
  for (int rank = 1; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) become_rank(rank);
    children_.push_back(child);
  }
}

OtherRanks::~OtherRanks() {
  for (const pid_t child : children_) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  // std::filesystem::remove, not remove_all: libtorch.so exports a copy of remove_all that crashes.
  std::error_code ignored;
  std::filesystem::remove(store_, ignored);
  std::filesystem::remove(std::filesystem::path(store_).parent_path(), ignored);
}

}  // namespace bench::ddp
