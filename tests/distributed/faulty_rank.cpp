// A rank that fails in the way that its first argument names, so that tests see how the others end. It prints "ended: ERROR"
// and exits with 3 after an error of the library, which distinguishes errors from crashes.
#include <ATen/Functions.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include <apex_cpp/amp.h>
#include <apex_cpp/files/atomic_file.h>
#include <apex_cpp/parallel.h>
#include <apex_cpp/parallel/processes/backends.h>
#include <apex_cpp/parallel/processes/rendezvous.h>

namespace {

namespace parallel = apex::parallel;
using namespace parallel;

constexpr int kErrorReached = 3;
// On a busy machine processes start seconds apart; the operations themselves are fast.
constexpr std::chrono::seconds kStart{60}, kOperation{5};
// For a wait that is meant to time out.
constexpr std::chrono::seconds kShort{1};

std::string variable(const char* name, const char* otherwise = "") {
  const char* text = std::getenv(name);
  return text ? text : otherwise;
}

bool is_last() { return default_process_group()->getRank() == default_process_group()->getSize() - 1; }

ProcessGroupOptions meeting(std::chrono::seconds timeout) {
  return ProcessGroupOptions().backend(variable("BACKEND", "gloo")).timeout(timeout).init_method(variable("STORE", "env://"));
}

void start() {
  init_process_group(meeting(kStart));
  default_process_group()->barrier()->wait();
  default_process_group()->setTimeout(kOperation);
}

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

// The last rank reports its failure and then hangs: it never says that it has heard of the others. Rank 1 has a longer timeout
// than rank 0, which serves the store.
void last_rank_reports_and_hangs() {
  start();
  const int rank = default_process_group()->getRank();
  if (is_last()) {
    auto& store = *default_process_group()->getStore();
    store.set("failed/" + std::to_string(rank), std::string("the first sum failed: no memory"));
    store.set("failed", std::string("yes"));
    hang();
  }
  if (rank == 1) default_process_group()->setTimeout(kStart);
  sum("the first sum");
}

void last_rank_throws() {
  start();
  TORCH_CHECK(!is_last(), "a file is missing");
  sum("the first sum");
}

void last_rank_never_starts() {
  if (variable("RANK") == "0") init_process_group(meeting(kShort));
}

void last_rank_calls_itself_1() {
  if (variable("RANK") == "2") ::setenv("RANK", "1", 1);
  start();
}

void last_rank_has_a_larger_world_size() {
  if (variable("RANK") == "1") ::setenv("WORLD_SIZE", "3", 1);
  start();
}

void meet_at_a_file() {
  init_process_group(meeting(kStart));
  sum("the first sum");
  if (std::getenv("DIE")) die();
  destroy_process_group();
}

void one_rank_names_the_backend() {
  auto options = meeting(kStart);
  if (variable("RANK") == "0") options.backend("");
  init_process_group(options);
  sum("the first sum");
}

// The rank in WITH_GPU says that it has a GPU, as where a machine has fewer GPUs than ranks.
void one_rank_has_a_gpu() {
  auto options = meeting(kStart);
  options.backend("");
  if (variable("RANK") != variable("WITH_GPU")) {
    init_process_group(options);
    return sum("the first sum");
  }
  const auto place = parallel::detail::open_store(options);
  parallel::detail::meet(place, parallel::detail::text_of({"", "0f3a"}), options.timeout());
  const auto gloo =
      parallel::detail::make_gloo({place.store, place.rank, place.world_size, options.timeout(), variable("MASTER_ADDR")});
  std::vector<at::Tensor> ones{at::ones({1 << 16})};
  gloo->allreduce(ones)->wait();
}

void wraps_a_model_before_the_start() {
  torch::nn::Linear model(2, 2);
  apex::parallel::DistributedDataParallel ddp(model);
}

// Creates and destroys the default group twice.
void start_twice() {
  for (int times = 0; times < 2; ++times) {
    start();
    sum("the sum of this start");
    destroy_process_group();
  }
}

// The failure occurs in a group of two; the other ranks wait in the default group.
void last_rank_of_a_group_dies() {
  start();
  const auto pair = new_group({1, 2});
  default_process_group()->setTimeout(kStart);
  if (is_last()) die();
  if (is_member(pair)) {
    pair->setTimeout(kOperation);
    all_reduce(pair, at::ones({1 << 16}), "the pair's sum");
  }
  sum("everyone's sum");
}

void shapes_differ() {
  start();
  const std::string shapes = is_last() ? "weight 3 x 3" : "weight 3 x 4";
  parallel::expect_same(default_process_group(), shapes, "the models");
}

// Where the process dies: in a training step of the last rank, or in rank 0's second checkpoint.
enum class Death { none, forward, backward, checkpoint };

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    if (dies_in_forward) die();
    auto hidden = first(x).relu();
    if (dies_in_backward) hidden.register_hook([](const at::Tensor&) { die(); });
    return second(hidden);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(16, 64));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(64, 1));
  bool dies_in_forward = false, dies_in_backward = false;
};
TORCH_MODULE(Net);

// Kills the process during a write.
struct DeadlyCalls : apex::amp::detail::FileCalls {
  int fsync(int) override { return die(), 0; }
};

// All ranks wait for rank 0's file.
void checkpoint(const apex::amp::Model<Net>& net, const torch::optim::Optimizer& optimizer, bool dies) {
  const bool writes = default_process_group()->getRank() == 0;
  DeadlyCalls calls;
  std::optional<apex::amp::detail::FileCallsGuard> guard;
  if (writes && dies) guard.emplace(calls);
  if (writes) apex::amp::save_checkpoint(std::getenv("CHECKPOINT"), net, optimizer);
  gather_strings(default_process_group(), "", "waiting for the checkpoint");
}

Net train(Death death, const char* level = "O2") {
  start();
  Net model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, optimizer] = apex::amp::initialize(model, sgd, level, apex::amp::InitializeOptions().verbosity(0));
  apex::parallel::DistributedDataParallel ddp(net);
  for (int step = 0; step < 4; ++step) {
    const bool now = step == 2 && is_last();
    net->dies_in_forward = now && death == Death::forward;
    net->dies_in_backward = now && death == Death::backward;
    optimizer.zero_grad();
    const auto loss = ddp(at::randn({8, 16})).square().mean();
    apex::amp::scale_loss(loss, optimizer).backward();
    optimizer.step();
    checkpoint(net, optimizer, step == 2 && death == Death::checkpoint);
  }
  return model;
}

void last_rank_dies_in_forward() { train(Death::forward); }
void last_rank_dies_in_backward() { train(Death::backward); }
void first_rank_dies_in_checkpoint() { train(Death::checkpoint); }

void set_ready(const std::string& path) { std::ofstream(path) << "here"; }

void wait_until_ready(const std::string& path) {
  while (std::ifstream(path).peek() == EOF) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// The rank in LATE starts after the file READY has content: either the store's own file, or a file that another rank writes
// before it starts to wait.
void one_rank_is_late() {
  const bool of_the_store = variable("STORE") == "file://" + variable("READY");
  if (variable("RANK") == variable("LATE")) {
    wait_until_ready(variable("READY"));
  } else if (!of_the_store) {
    set_ready(variable("READY"));
  }
  const Net net = train(Death::none);
  std::ostringstream weights;
  weights << net->first->weight.to(at::kFloat) << net->second->weight.to(at::kFloat);
  expect_same(default_process_group(), weights.str(), "the weights after training");
}

void gives_up_waiting() { init_process_group(meeting(kShort)); }

// Rank 0 stays alive, and so does its store.
void last_rank_starts_after_the_first_gave_up() {
  if (variable("RANK") == "1") {
    wait_until_ready(variable("READY"));
    gives_up_waiting();
  } else {
    try {
      gives_up_waiting();
    } catch (const std::exception&) {
      set_ready(variable("READY"));
    }
    hang();
  }
}

// Two buckets of the same size. The last rank leaves a pass between them, so its first bucket of the next pass meets the
// others' second bucket.
void last_rank_continues_after_an_error() {
  start();
  const auto without_bias = torch::nn::LinearOptions(4, 4).bias(false);
  torch::nn::Linear first(without_bias), second(without_bias);
  torch::nn::Sequential net(first, second);
  apex::parallel::DistributedDataParallel ddp(net, DistributedDataParallelOptions().message_size(1));
  for (int pass = 0; pass < 3; ++pass) {
    const bool throws = pass == 1 && is_last();
    const auto hidden = first(at::ones({1, 4}));
    if (throws) hidden.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "in a hook"); });
    try {
      second(hidden).sum().backward();
    } catch (const std::exception&) {
      if (!throws) throw;
    }
  }
}

void last_rank_trains_at_a_different_level() { train(Death::none, variable("RANK") == "0" ? "O2" : "O0"); }

// Succeeds if the checkpoint is complete.
void load_the_checkpoint() {
  Net model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, optimizer] = apex::amp::initialize(model, sgd, "O2", apex::amp::InitializeOptions().verbosity(0));
  apex::amp::load_checkpoint(std::getenv("CHECKPOINT"), net, optimizer);
}

const std::map<std::string, void (*)()> kFaults{
    {"start", start},
    {"last_rank_dies", last_rank_dies},
    {"first_rank_dies", first_rank_dies},
    {"last_rank_hangs", last_rank_hangs},
    {"last_rank_reports_and_hangs", last_rank_reports_and_hangs},
    {"last_rank_throws", last_rank_throws},
    {"last_rank_calls_itself_1", last_rank_calls_itself_1},
    {"last_rank_has_a_larger_world_size", last_rank_has_a_larger_world_size},
    {"meet_at_a_file", meet_at_a_file},
    {"one_rank_names_the_backend", one_rank_names_the_backend},
    {"one_rank_has_a_gpu", one_rank_has_a_gpu},
    {"wraps_a_model_before_the_start", wraps_a_model_before_the_start},
    {"last_rank_never_starts", last_rank_never_starts},
    {"one_rank_is_late", one_rank_is_late},
    {"gives_up_waiting", gives_up_waiting},
    {"last_rank_starts_after_the_first_gave_up", last_rank_starts_after_the_first_gave_up},
    {"last_rank_dies_in_forward", last_rank_dies_in_forward},
    {"last_rank_dies_in_backward", last_rank_dies_in_backward},
    {"first_rank_dies_in_checkpoint", first_rank_dies_in_checkpoint},
    {"last_rank_continues_after_an_error", last_rank_continues_after_an_error},
    {"last_rank_trains_at_a_different_level", last_rank_trains_at_a_different_level},
    {"load_the_checkpoint", load_the_checkpoint},
    {"start_twice", start_twice},
    {"last_rank_of_a_group_dies", last_rank_of_a_group_dies},
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
