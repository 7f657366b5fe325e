// A rank that fails in the way its first argument names; the others show how they end. It prints "ended: ERROR" and exits with
// 3 when an error of the library reaches it, so that a test can tell errors from crashes.
#include <ATen/Functions.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>

#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/processes/process_group.h>

namespace {

namespace parallel = apex::parallel;
using namespace parallel;

constexpr int kErrorReached = 3;
constexpr std::chrono::milliseconds kTimeout{1000};

bool is_last() { return default_process_group()->getRank() == default_process_group()->getSize() - 1; }

void start() { init_process_group(ProcessGroupOptions().backend("gloo").timeout(kTimeout)); }

void sum(const char* what) { all_reduce(default_process_group(), at::ones({1 << 16}), what); }

void die() { std::raise(SIGKILL); }

void hang() {
  while (true) ::pause();
}

void last_rank_dies() {
  start();
  sum("the first sum");
  if (is_last()) die();
  sum("the second sum");
}

void first_rank_dies() {
  start();
  sum("the first sum");
  if (default_process_group()->getRank() == 0) die();
  sum("the second sum");
}

void last_rank_hangs() {
  start();
  sum("the first sum");
  if (is_last()) hang();
  sum("the second sum");
}

void last_rank_throws() {
  start();
  TORCH_CHECK(!is_last(), "a file is missing");
  sum("the first sum");
}

void last_rank_never_comes() {
  if (std::string(std::getenv("RANK")) != "0") return;
  start();
}

void last_rank_calls_itself_1() {
  if (std::string(std::getenv("RANK")) == "2") ::setenv("RANK", "1", 1);
  start();
}

void last_rank_counts_one_more() {
  if (std::string(std::getenv("RANK")) == "1") ::setenv("WORLD_SIZE", "3", 1);
  start();
}

void meet_at_a_file() {
  init_process_group(ProcessGroupOptions().backend("gloo").timeout(kTimeout).init_method(std::getenv("STORE")));
  sum("the first sum");
  if (std::getenv("DIE")) die();
  destroy_process_group();
}

void shapes_differ() {
  start();
  const std::string mine = is_last() ? "weight 3 x 3" : "weight 3 x 4";
  parallel::expect_same(default_process_group(), mine, "the models");
}

const std::map<std::string, void (*)()> kFaults{{"start", start},
                                                {"last_rank_dies", last_rank_dies},
                                                {"first_rank_dies", first_rank_dies},
                                                {"last_rank_hangs", last_rank_hangs},
                                                {"last_rank_throws", last_rank_throws},
                                                {"last_rank_calls_itself_1", last_rank_calls_itself_1},
                                                {"last_rank_counts_one_more", last_rank_counts_one_more},
                                                {"meet_at_a_file", meet_at_a_file},
                                                {"last_rank_never_comes", last_rank_never_comes},
                                                {"shapes_differ", shapes_differ}};

}  // namespace

int main(int, char** argv) {
  try {
    kFaults.at(argv[1])();
  } catch (const std::exception& error) {
    std::cout << "ended: " << error.what() << std::endl;
    return kErrorReached;
  }
  std::cout << "ended well" << std::endl;
}
