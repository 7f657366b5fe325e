#include <apex_cpp/amp/casts/thread_casts.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <mutex>
#include <utility>

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/disable_casts.h>
#include <apex_cpp/amp/casts/dispatch.h>

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

const CastRules* carried_rules() {
  thread_local uint64_t seen = ~uint64_t{0};
  thread_local std::shared_ptr<const CastRules> rules;
  if (seen != newest().generation.load()) {
    const std::lock_guard<std::mutex> lock(newest().mutex);
    rules = newest().rules;
    seen = newest().generation.load();
  }
  return rules.get();
}

// Both flags: every autocast key is excluded by default, and no tensor carries this one.
void set_switch(bool included, bool excluded) {
  c10::impl::tls_set_dispatch_key_included(kCastKey, included);
  c10::impl::tls_set_dispatch_key_excluded(kCastKey, excluded);
}

}  // namespace

ThreadCasts& thread_casts() {
  thread_local ThreadCasts instance;
  return instance;
}

void cast_on_this_thread(std::shared_ptr<const CastRules> rules) {
  set_switch(rules != nullptr, rules == nullptr);
  newest().set(rules);
  auto& here = thread_casts();
  here.rules = std::move(rules);
  here.graph_task = -1;
}

void release_threads(const std::shared_ptr<CastRules>& rules) {
  rules->release_threads();
  newest().forget(rules);
  if (thread_casts().rules != rules) return;
  set_switch(false, true);
  thread_casts().rules.reset();
}

ForwardScope::ForwardScope(const std::shared_ptr<CastRules>& rules)
    : previous_(thread_casts()),
      was_included_(c10::impl::tls_is_dispatch_key_included(kCastKey)),
      was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kCastKey)) {
  auto& here = thread_casts();
  here.rules = rules;
  here.graph_task = torch::autograd::get_current_graph_task_id();
  ++here.forward_depth;
  set_switch(rules != nullptr, rules == nullptr);
}

ForwardScope::~ForwardScope() {
  auto& here = thread_casts();
  if (here.rules && previous_.forward_depth == 0 && !at::GradMode::is_enabled()) here.rules->cache().clear();
  here = std::move(previous_);
  set_switch(was_included_, was_excluded_);
}

const CastRules* rules_in_force(const ThreadCasts& here) {
  if (torch::autograd::get_current_graph_task_id() != here.graph_task) return nullptr;
  const CastRules* rules = here.rules ? here.rules.get() : carried_rules();
  const bool released = rules && here.forward_depth == 0 && rules->released_threads();
  return released ? nullptr : rules;
}

}  // namespace detail

disable_casts::disable_casts() : previous_(std::exchange(detail::thread_casts().disabled, true)) {}

disable_casts::~disable_casts() { detail::thread_casts().disabled = previous_; }

}  // namespace apex::amp
