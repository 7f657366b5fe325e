#pragma once

#include <cstdint>
#include <memory>

// Part of every model handle: what a user's file reads of the engine is this and no more.
namespace apex::amp::detail {

class CastRules;
class TraceRecorder;

/// What the engine does on one thread.
struct ThreadCasts {
  std::shared_ptr<const CastRules> rules;  ///< null: nothing, or what `at::ThreadLocalState` carried here
  bool disabled = false;                   ///< inside `disable_casts`
  int64_t graph_task = -1;                 ///< the backward pass that switched casts on; -1: none. No other one is cast
  int forward_depth = 0;                   ///< handles' forwards that are running
  TraceRecorder* recorder = nullptr;       ///< where casts are reported while `amp::trace` is on
};

/// The calling thread's state.
ThreadCasts& thread_casts();

/// Switches casts on for the calling thread until further notice, by `rules`; off if null. Other threads to which
/// `at::ThreadLocalState` carries the switch follow the newest rules of the process.
void cast_on_this_thread(std::shared_ptr<const CastRules> rules);
/// No thread casts by `rules` any more, except inside a `ForwardScope`.
void release_threads(const std::shared_ptr<CastRules>& rules);

/// Casts by `rules` for one forward pass of a handle, on whatever thread it runs; off if null. Restores what was before.
/// Where grad mode is off, its end empties the cache: nothing stale is left for the next evaluation.
class ForwardScope {
 public:
  explicit ForwardScope(const std::shared_ptr<CastRules>& rules);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  ThreadCasts previous_;
  bool was_included_, was_excluded_;
};

/// The rules by which an operator that is called now, on the thread whose state this is, is cast, or null. Not inside a
/// backward pass, unless casts were switched on within it (a forward pass that is computed again).
const CastRules* rules_in_force(const ThreadCasts& here);

}  // namespace apex::amp::detail
