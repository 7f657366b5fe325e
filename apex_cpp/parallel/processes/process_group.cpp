#include <apex_cpp/parallel/processes/process_group.h>

#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/parallel/processes/backends.h>
#include <apex_cpp/parallel/processes/rendezvous.h>

#include <c10/util/Exception.h>
#include <signal.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <exception>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

namespace apex::parallel {
namespace {

// Gloo writes to sockets without MSG_NOSIGNAL: if another process has died, the signal would end this process without a
// message. Python ignores the signal. Unlike SIG_IGN, a handler is not inherited by programs that this process starts.
void outlive_broken_connections() {
  struct sigaction action {};
  ::sigaction(SIGPIPE, nullptr, &action);
  if ((action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, &action, nullptr);
}

using Backends = c10d::ProcessGroup::BackendType;

/// The default group, and what new_group needs to create further groups.
struct World {
  ProcessGroup group;
  std::string backend;
  std::string address;
  std::chrono::milliseconds timeout{};
  int groups_made = 0;
};

World& world() {
  static auto* world = new World;  // never destroyed: an operation may still run when main returns
  return *world;
}

void check_backend(const std::string& backend) {
  TORCH_CHECK(backend.empty() || backend == "gloo" || backend == "nccl" || backend == "cpu:gloo,cuda:nccl",
              "init_process_group: there is no backend '", backend, "': use gloo, nccl or cpu:gloo,cuda:nccl");
}

bool has_nccl(const std::string& backend) { return backend.find("nccl") != std::string::npos; }

// Warns if Gloo was chosen although some ranks have GPUs: CUDA tensors then go through host memory.
void warn_of_unused_gpus(const std::vector<detail::BackendWish>& wishes) {
  const auto has_gpu = [](const detail::BackendWish& wish) { return !wish.gpu.empty(); };
  const auto is_told = [](const detail::BackendWish& wish) { return !wish.backend.empty(); };
  if (std::any_of(wishes.begin(), wishes.end(), has_gpu) && std::none_of(wishes.begin(), wishes.end(), is_told))
    TORCH_WARN("init_process_group: ", detail::why_without_nccl(wishes),
               ": all ranks use Gloo, which copies through the host. For NCCL start one process for each GPU.");
}

// Exchanges the wishes of all ranks, from which every rank chooses the same backend.
std::string meet_and_choose(const detail::Rendezvous& place, const ProcessGroupOptions& options) {
  const detail::BackendWish mine{options.backend(), options.backend().empty() ? detail::name_of_gpu(place.rank) : ""};
  std::vector<detail::BackendWish> wishes;
  for (const auto& text : detail::meet(place, detail::text_of(mine), options.timeout()))
    wishes.push_back(detail::wish_of(text));
  const auto backend = detail::choose_backend(wishes);
  if (place.rank == 0 && backend == "gloo") warn_of_unused_gpus(wishes);
  return backend;
}

void add_gloo(c10d::ProcessGroup& group, const detail::BackendPlace& place, bool for_cuda) {
  const auto gloo = detail::make_gloo(place);
  group.setBackend(at::kCPU, Backends::GLOO, gloo);
  if (for_cuda) group.setBackend(at::kCUDA, Backends::GLOO, gloo);
}

ProcessGroup make_group(const detail::BackendPlace& place, const std::string& backend, const std::string& name) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(place.store, place.rank, place.size);
  group->setDefaultBackend(backend == "nccl" ? Backends::NCCL : Backends::GLOO);
  if (backend != "nccl") add_gloo(*group, place, backend == "gloo");
  if (backend != "gloo") group->setBackend(at::kCUDA, Backends::NCCL, detail::make_nccl(place));
  group->setGroupName(name);
  return group;
}

// Stands for a group without this process: null would mean the default group.
ProcessGroup nobodys_group(int size) { return c10::make_intrusive<c10d::ProcessGroup>(-1, size); }

std::string list_of(const std::vector<int>& ranks) {
  std::ostringstream text;
  for (const int rank : ranks) text << (text.tellp() > 0 ? ", " : "") << rank;
  return text.str();
}

void check_ranks(const std::vector<int>& ranks, int size) {
  TORCH_CHECK_VALUE(!ranks.empty(), "new_group: no ranks are given: name at least one");
  TORCH_CHECK_VALUE(std::set<int>(ranks.begin(), ranks.end()).size() == ranks.size(), "new_group: a rank is listed twice in ",
                    list_of(ranks));
  for (const int rank : ranks)
    TORCH_CHECK_VALUE(0 <= rank && rank < size, "new_group: rank ", rank, " is outside the world of ", size, " ranks");
}

}  // namespace

ProcessGroup init_process_group(const ProcessGroupOptions& options) {
  TORCH_CHECK(!is_initialized(), "init_process_group was called twice: call destroy_process_group first");
  outlive_broken_connections();
  check_backend(options.backend());
  const auto place = detail::open_store(options);
  if (has_nccl(options.backend())) detail::take_gpu(place.rank);  // fails before others wait for this rank
  const auto backend = meet_and_choose(place, options);
  if (has_nccl(backend)) detail::take_gpu(place.rank);
  const auto address = place.host.empty() ? "" : detail::address_towards(place.host);
  auto group = make_group({place.store, place.rank, place.world_size, options.timeout(), address}, backend, "world");
  world() = {group, backend, address, options.timeout(), 0};
  amp::detail::set_printing(place.rank == 0);
  return group;
}

ProcessGroup default_process_group() {
  TORCH_CHECK(
      is_initialized(),
      "apex::parallel: no process group was made: call apex::parallel::init_process_group() first, or give a process_group");
  return world().group;
}

bool is_initialized() { return world().group.defined(); }

// NCCL's destructor alone aborts what is in flight. An exception that ends the program may mean that other ranks never come.
void destroy_process_group() {
  const World last = std::exchange(world(), {});
  amp::detail::set_printing(true);
  const bool is_last_owner = last.group && last.group.use_count() == 1;
  if (is_last_owner && std::uncaught_exceptions() == 0) last.group->shutdown();
}

ProcessGroup new_group(const std::vector<int>& ranks) {
  const auto all = default_process_group();
  check_ranks(ranks, all->getSize());
  const auto name = "group_" + std::to_string(world().groups_made++);
  const auto found = std::find(ranks.begin(), ranks.end(), all->getRank());
  if (found == ranks.end()) return nobodys_group(static_cast<int>(ranks.size()));
  auto store = c10::make_intrusive<c10d::PrefixStore>(name, all->getStore());
  auto group = make_group({std::move(store), static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size()),
                           world().timeout, world().address},
                          world().backend, name);
  group->setGroupDesc("ranks " + list_of(ranks) + " of " + std::to_string(all->getSize()));
  return group;
}

bool is_member(const ProcessGroup& group) { return group->getRank() >= 0; }

ProcessGroup or_default(const ProcessGroup& group) {
  if (!group.defined()) return default_process_group();
  TORCH_CHECK_VALUE(is_member(group), "process_group: this process is not among the ranks of the given group");
  return group;
}

}  // namespace apex::parallel

namespace apex::parallel::detail {
namespace {

using std::chrono::milliseconds;
constexpr const char* kAnyFailure = "failed";
constexpr milliseconds kHearing{10'000};

std::string report_of(int rank) { return "failed/" + std::to_string(rank); }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Ranks that wait in another group learn of a failure from the default group's store.
template <class Action>
void for_each_store(const ProcessGroup& group, const Action& action) {
  action(*group->getStore());
  if (is_initialized() && default_process_group() != group) action(*default_process_group()->getStore());
}

void send_report(const ProcessGroup& group, const std::string& text) {
  group->getStore()->set(report_of(group->getRank()), text);
  for_each_store(group, [](c10d::Store& store) { store.set(kAnyFailure, std::string("yes")); });
}

// How long to collect reports: other ranks may still be busy, but none waits longer than the timeout.
milliseconds hearing_time(const ProcessGroup& group) {
  const auto timeout = group->getDefaultBackend()->getBackendOptions()->timeout;
  return std::min(kHearing, timeout);
}

struct Reports {
  std::string heard;
  std::string silent;
};

void hear(c10d::Store& store, int rank, milliseconds patience, Reports& reports) {
  try {
    store.wait({report_of(rank)}, patience);
  } catch (const std::exception&) {
    if (!store.check({report_of(rank)})) {
      reports.silent += (reports.silent.empty() ? "" : ", ") + std::to_string(rank);
      return;
    }
  }
  const auto text = store.get(report_of(rank));
  reports.heard += "\n  rank " + std::to_string(rank) + ": " + std::string(text.begin(), text.end());
}

Reports hear_all(const ProcessGroup& group) {
  Reports reports;
  const auto until = std::chrono::steady_clock::now() + hearing_time(group);
  for (int rank = 0; rank < group->getSize(); ++rank) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
    if (rank != group->getRank()) hear(*group->getStore(), rank, std::max(left, milliseconds(1)), reports);
  }
  return reports;
}

// Nobody sets the key: waiting for it ends in a timeout, which serves as a pause.
void wait_a_little(c10d::Store& store) {
  try {
    store.wait({"all have heard"}, milliseconds(50));
  } catch (const std::exception&) {
  }
}

// The process that serves the store leaves last: without it the other ranks could not ask for reports.
void part(const ProcessGroup& group, const Reports& reports) {
  auto& store = *group->getStore();
  const auto silent = std::count(reports.silent.begin(), reports.silent.end(), ',') + !reports.silent.empty();
  store.add("heard", 1);
  const auto until = std::chrono::steady_clock::now() + hearing_time(group);
  if (group->getRank() != 0) return;
  while (store.add("heard", 0) < group->getSize() - silent && std::chrono::steady_clock::now() < until) wait_a_little(store);
}

std::string who_failed(const ProcessGroup& group) {
  std::ostringstream text;
  try {
    const auto reports = hear_all(group);
    if (!reports.silent.empty())
      text << "\nNo report from rank " << reports.silent << " within " << hearing_time(group).count()
           << " ms: the process has ended, hangs, or is busy elsewhere; its own output says why.";
    if (!reports.heard.empty()) text << "\nReports of the others:" << reports.heard;
    part(group, reports);
  } catch (const std::exception& error) {
    text << "\nThe store through which the ranks report has ended with the process that served it (rank 0, or torchrun's "
            "agent): "
         << first_line(error.what());
  }
  return text.str();
}

// The destructor would wait for operations that cannot finish. The list keeps the groups within reach of leak checkers.
void never_destroy(const ProcessGroup& group) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<ProcessGroup>;
  const std::lock_guard<std::mutex> lock(mutex);
  kept.push_back(group);
}

}  // namespace

bool any_failure(const ProcessGroup& group) {
  bool found = false;
  for_each_store(group, [&](c10d::Store& store) { found = found || store.check({kAnyFailure}); });
  return found;
}

void fail(const ProcessGroup& group, const std::string& what, const std::string& cause) {
  never_destroy(group);
  try {
    send_report(group, what + " failed: " + first_line(cause));
  } catch (const std::exception&) {  // who_failed says that the store is gone
  }
  TORCH_CHECK_WITH(DistBackendError, false, "rank ", group->getRank(), " of ", group->getSize(), ": ", what,
                   " failed: ", first_line(cause), who_failed(group));
}

}  // namespace apex::parallel::detail
