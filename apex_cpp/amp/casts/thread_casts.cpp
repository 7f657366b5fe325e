#include <apex_cpp/amp/casts/thread_casts.h>

#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/custom_functions.h>
#include <apex_cpp/torch_compat/autograd.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace apex::amp {
namespace detail {
namespace {

/// The newest rules of the process, for threads without rules of their own whose switch came by `at::ThreadLocalState`.
struct Newest {
  std::mutex mutex;
  std::shared_ptr<const CastRules> rules;
  std::atomic<uint64_t> generation{0};

  void set(std::shared_ptr<const CastRules> value) {
    const std::lock_guard<std::mutex> lock(mutex);
    rules = std::move(value);
    generation.fetch_add(1);
  }
  bool empty() {
    const std::lock_guard<std::mutex> lock(mutex);
    return rules == nullptr;
  }
  void forget(const std::shared_ptr<CastRules>& released) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (rules == released) rules.reset();
    generation.fetch_add(1);
  }
};

Newest& newest() {
  static Newest instance;
  return instance;
}

const std::shared_ptr<const CastRules>& carried_rules() {
  thread_local uint64_t seen = ~uint64_t{0};
  thread_local std::shared_ptr<const CastRules> rules;
  if (seen != newest().generation.load()) {
    const std::lock_guard<std::mutex> lock(newest().mutex);
    rules = newest().rules;
    seen = newest().generation.load();
  }
  return rules;
}

// Sets both flags: LibTorch excludes every autocast key by default, and no tensor carries this key.
void set_flags(bool included, bool excluded) {
  c10::impl::tls_set_dispatch_key_included(kCastKey, included);
  c10::impl::tls_set_dispatch_key_excluded(kCastKey, excluded);
  c10::impl::tls_set_dispatch_key_included(kCpuFallbackKey, included);
}

// The flags, and whether TorchScript's executor optimises, as a SavedCasts holds them.
void set_switches(bool included, bool excluded, bool optimizes_scripts) {
  set_flags(included, excluded);
  torch::jit::setGraphExecutorOptimize(optimizes_scripts);
}

// While casts are on, TorchScript runs graphs without its executor's optimisations and with autograd's derivatives: the
// executor would save an operator's arguments before the cast.
void set_switch(bool on) {
  const bool was_on = c10::impl::tls_is_dispatch_key_included(kCastKey);
  set_flags(on, !on);
  if (on || was_on) torch::jit::setGraphExecutorOptimize(!on);
}

uint64_t next_forward() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Returns the node of a custom torch::autograd::Function that computes its forward pass again within a backward pass, as
// activation checkpointing does; null otherwise. Grad mode is off in a backward pass, except with `create_graph`, where it is
// on for every formula.
torch_compat::NodePtr node_that_computes_again(const ThreadCasts& here) {
  if (!at::GradMode::is_enabled()) return nullptr;
  if (!here.plain_pass && torch_compat::keeps_graph()) return nullptr;
  auto node = torch_compat::current_node();
  return node && torch_compat::is_function_node(*node) ? node : nullptr;
}

// False on autograd's threads, unless they compute a part of a program's thread again, and in parallel regions.
bool is_a_programs_thread() {
  const bool in_backward = torch_compat::graph_task() != torch_compat::kNoGraphTask;
  return (!in_backward || thread_casts().recomputes) && !at::in_parallel_region();
}

}  // namespace

ThreadCasts& thread_casts() {
  thread_local ThreadCasts instance;
  return instance;
}

void cast_on_this_thread(std::shared_ptr<const CastRules> rules) {
  set_switch(rules != nullptr);
  newest().set(rules);
  auto& here = thread_casts();
  here.rules = std::move(rules);
  here.graph_task = torch_compat::kNoGraphTask;
}

void release_threads(const std::shared_ptr<CastRules>& rules) {
  rules->release_threads();
  newest().forget(rules);
  set_switch(false);
  thread_casts().rules.reset();
}

SavedCasts::SavedCasts()
    : casts_(thread_casts()),
      included_(c10::impl::tls_is_dispatch_key_included(kCastKey)),
      excluded_(c10::impl::tls_is_dispatch_key_excluded(kCastKey)),
      optimizes_scripts_(torch::jit::getGraphExecutorOptimize()) {}

void SavedCasts::restore() {
  casts_.recorder = thread_casts().recorder;  // a trace may have begun or ended meanwhile
  thread_casts() = std::move(casts_);
  set_switches(included_, excluded_, optimizes_scripts_);
}

void SavedCasts::resume() const {
  auto& here = thread_casts();
  ThreadCasts resumed = casts_;
  resumed.graph_task = torch_compat::graph_task();
  resumed.recomputes = true;
  resumed.plain_pass = here.plain_pass;
  resumed.recorder = here.recorder;
  here = std::move(resumed);
  set_switches(included_, excluded_, optimizes_scripts_);
}

SavedFloat8Scales::SavedFloat8Scales() {
  const auto rules = rules_of_this_thread();
  if (rules) history_ = rules->float8_history();
  if (history_) scales_ = history_->scales();
}

CastsAs::CastsAs(std::shared_ptr<const CastRules> rules) {
  auto& here = thread_casts();
  here.rules = std::move(rules);
  here.disabled = false;
  here.graph_task = torch_compat::graph_task();
  set_switch(true);
}

ForwardScope::ForwardScope(const std::shared_ptr<CastRules>& rules) : first_node_(NodeRanges::next_node()) {
  auto& here = thread_casts();
  here.rules = rules;
  here.graph_task = torch_compat::graph_task();
  if (!previous_.inside_forward()) here.forward = next_forward();
  set_switch(rules != nullptr);
}

ForwardScope::~ForwardScope() {
  const auto rules = thread_casts().rules;
  if (rules && !previous_.inside_forward_by(rules)) rules->cache().end_forward();
  if (!previous_.inside_forward()) nodes_of_handles().add(first_node_);
  const bool goes_on = rules && previous_.none() && !previous_.inside_forward() && is_a_programs_thread() && !newest().empty();
  previous_.restore();
  if (goes_on) set_switch(true);
}

BackwardScope::BackwardScope(const std::shared_ptr<CastRules>& rules, bool creates_graph) {
  auto& here = thread_casts();
  here.plain_pass = !creates_graph;
  here.of_block = rules;
  if (rules || (previous_.none() && !newest().empty())) set_switch(true);
}

RulesInForce rules_in_force(const ThreadCasts& here) {
  const bool foreign = torch_compat::graph_task() != here.graph_task;
  const auto again = foreign ? node_that_computes_again(here) : nullptr;
  const bool again_in_forward = again && nodes_of_handles().has(*again);
  const bool by_block = here.of_block && foreign && (!again || again_in_forward);
  const CastRules* rules = (by_block ? here.of_block : here.rules ? here.rules : carried_rules()).get();
  const bool is_running = by_block || here.forward != 0;
  if (!rules || (!is_running && rules->released_threads())) return {};
  const bool matches = rules->mode() == CastRules::Mode::match;
  if (again) {
    const bool disabled = here.disabled || nodes_without_casts().has(*again);
    return {rules, matches && again_in_forward, false, disabled, again_in_forward};
  }
  const bool in_forward = here.forward != 0;
  return {rules, foreign || (in_forward && matches), foreign, here.disabled, in_forward};
}

bool are_casts_on() { return c10::impl::tls_is_dispatch_key_included(kCastKey); }

std::shared_ptr<const CastRules> rules_of_this_thread() {
  const auto& here = thread_casts();
  return here.rules ? here.rules : carried_rules();
}

std::shared_ptr<const CastRules> listed_casts_in_force() {
  const auto& here = thread_casts();
  if (!are_casts_on()) return nullptr;
  const RulesInForce in_force = rules_in_force(here);
  const CastRules* const rules = in_force.rules;
  if (!rules || in_force.only_mixes || in_force.disabled || rules->mode() != CastRules::Mode::casts) return nullptr;
  return rules == here.of_block.get() ? here.of_block : rules_of_this_thread();
}

namespace {

// The thread's own rules while they are in force; null stands for the newest rules.
std::shared_ptr<const CastRules> rules_to_enable() {
  const auto& here = thread_casts();
  const bool has_own = here.rules && (here.forward != 0 || !here.rules->released_threads());
  return has_own ? here.rules : nullptr;
}

}  // namespace
}  // namespace detail

enable_casts::enable_casts() : casts_(detail::rules_to_enable()) {}

disable_casts::disable_casts()
    : previous_(std::exchange(detail::thread_casts().disabled, true)), first_node_(detail::NodeRanges::next_node()) {}

disable_casts::~disable_casts() {
  detail::thread_casts().disabled = previous_;
  if (!previous_) detail::nodes_without_casts().add(first_node_);
}

}  // namespace apex::amp

namespace apex::amp::detail {
namespace {

// Calls `f` on every other thread of the calling thread's parallel loops.
template <class F>
void on_workers(F f) {
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    if (at::get_thread_num() != 0) f();
  });
}

// The worker's guards; the innermost replica's is the last.
std::vector<CastsAs*>& casts_of_worker() {
  thread_local std::vector<CastsAs*> instance;
  return instance;
}

class WorkerCasts {
 public:
  explicit WorkerCasts(const std::shared_ptr<const CastRules>& rules) {
    on_workers([&] { casts_of_worker().push_back(new CastsAs(rules)); });
  }
  ~WorkerCasts() {
    on_workers([] {
      auto& casts = casts_of_worker();
      if (casts.empty()) return;
      delete casts.back();
      casts.pop_back();
    });
  }
  WorkerCasts(const WorkerCasts&) = delete;
  WorkerCasts& operator=(const WorkerCasts&) = delete;
};

}  // namespace

std::shared_ptr<void> casts_for_replicas() {
  const auto& here = thread_casts();
  const bool on = c10::impl::tls_is_dispatch_key_included(kCastKey) && !here.disabled;
  if (!on || at::in_parallel_region()) return nullptr;
  return std::make_shared<WorkerCasts>(here.rules);
}

}  // namespace apex::amp::detail
