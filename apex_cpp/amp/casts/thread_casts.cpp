#include <apex_cpp/amp/casts/thread_casts.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <typeinfo>
#include <utility>

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/disable_casts.h>
#include <apex_cpp/amp/casts/dispatch.h>
#include <apex_cpp/amp/casts/enable_casts.h>

namespace apex::amp {
namespace detail {
namespace {

/// The rules for threads to which the switch was carried from another thread, and which have no rules of their own.
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

// Both flags: every autocast key is excluded by default, and no tensor carries this one.
void set_flags(bool included, bool excluded) {
  c10::impl::tls_set_dispatch_key_included(kCastKey, included);
  c10::impl::tls_set_dispatch_key_excluded(kCastKey, excluded);
  c10::impl::tls_set_dispatch_key_included(kComputeKey, included);
}

// While casts are on, TorchScript runs graphs as they are written, operator by operator, with autograd's own derivatives: its
// executor's would save an operator's arguments as they were before the cast.
void set_switch(bool on) {
  const bool was_on = c10::impl::tls_is_dispatch_key_included(kCastKey);
  set_flags(on, !on);
  if (on || was_on) torch::jit::setGraphExecutorOptimize(!on);
}

uint64_t next_forward() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool is_in_custom_function() {
  const auto node = torch::autograd::get_current_node();
  return node && std::strstr(typeid(*node).name(), "CppNode") != nullptr;  // torch::autograd::CppNode<Function>
}

// Within a backward pass, as activation checkpointing does. LibTorch's formulas run without grad mode; in a pass that makes a
// graph of itself, which it keeps, they have it as well.
bool computes_forward_again() {
  if (!at::GradMode::is_enabled()) return false;
  return !torch::autograd::get_current_graph_task_keep_graph() || is_in_custom_function();
}

// Neither autograd's threads nor those that share an operator's work are the program's own.
bool is_a_programs_thread() { return torch::autograd::get_current_graph_task_id() == -1 && !at::in_parallel_region(); }

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
  here.graph_task = -1;
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
  thread_casts() = std::move(casts_);
  set_flags(included_, excluded_);
  torch::jit::setGraphExecutorOptimize(optimizes_scripts_);
}

CastsAs::CastsAs(std::shared_ptr<const CastRules> rules) {
  auto& here = thread_casts();
  here.rules = std::move(rules);
  here.disabled = false;
  here.graph_task = torch::autograd::get_current_graph_task_id();
  set_switch(true);
}

ForwardScope::ForwardScope(const std::shared_ptr<CastRules>& rules) {
  auto& here = thread_casts();
  here.rules = rules;
  here.graph_task = torch::autograd::get_current_graph_task_id();
  if (!previous_.inside_forward()) here.forward = next_forward();
  set_switch(rules != nullptr);
}

ForwardScope::~ForwardScope() {
  const auto rules = thread_casts().rules;
  if (rules && !previous_.inside_forward() && !at::GradMode::is_enabled()) rules->cache().clear();
  const bool goes_on = rules && previous_.none() && is_a_programs_thread() && !newest().empty();
  previous_.restore();
  if (goes_on) set_switch(true);
}

CastsOfOtherThreads::CastsOfOtherThreads() {
  if (previous_.none() && !newest().empty()) set_switch(true);
}

RulesInForce rules_in_force(const ThreadCasts& here) {
  const CastRules* rules = (here.rules ? here.rules : carried_rules()).get();
  if (!rules || (here.forward == 0 && rules->released_threads())) return {};
  const bool foreign = torch::autograd::get_current_graph_task_id() != here.graph_task;
  const bool again = foreign && computes_forward_again();
  const bool within_handle = here.forward != 0 || again;
  return {rules, (foreign && !again) || (within_handle && rules->mode() == CastRules::Mode::match), foreign && !again};
}

std::shared_ptr<const CastRules> listed_casts_in_force() {
  const auto& here = thread_casts();
  if (here.disabled || !c10::impl::tls_is_dispatch_key_included(kCastKey)) return nullptr;
  const auto [rules, only_mixes, in_backward] = rules_in_force(here);
  if (!rules || only_mixes || rules->mode() != CastRules::Mode::casts) return nullptr;
  return here.rules ? here.rules : carried_rules();
}

namespace {

// A thread's own rules, as long as they hold; else the newest.
std::shared_ptr<const CastRules> rules_to_enable() {
  const auto& here = thread_casts();
  const bool has_own = here.rules && (here.forward != 0 || !here.rules->released_threads());
  return has_own ? here.rules : nullptr;
}

}  // namespace
}  // namespace detail

enable_casts::enable_casts() : casts_(detail::rules_to_enable()) {}

disable_casts::disable_casts() : previous_(std::exchange(detail::thread_casts().disabled, true)) {}

disable_casts::~disable_casts() { detail::thread_casts().disabled = previous_; }

}  // namespace apex::amp
