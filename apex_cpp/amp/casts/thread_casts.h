#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/torch_compat/dispatch_keys.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>

namespace apex::amp::detail {

using torch_compat::kBelowCastKey;
using torch_compat::kBelowCpuFallbackKey;
using torch_compat::kCastKey;
using torch_compat::kCpuFallbackKey;
using torch_compat::kOffInside;

// The only part of the cast engine that model handles, and so a user's files, include.

class CastRules;
class TraceRecorder;

/// The cast engine's state on one thread.
struct ThreadCasts {
  std::shared_ptr<const CastRules> rules;     ///< null: no rules of its own; `at::ThreadLocalState` may have switched casts on
  bool disabled = false;                      ///< inside `disable_casts`
  int64_t graph_task = -1;                    ///< the backward pass that switched casts on; -1: none
  uint64_t forward = 0;                       ///< number of the running forward pass of the outermost handle; 0: none
  bool float8_paused = false;                 ///< inside an operator whose own operators are not rounded to FP8
  bool recomputes = false;                    ///< a backward pass computes a part of a thread's forward pass again
  bool plain_pass = false;                    ///< a `scale_loss` block runs a backward pass without `create_graph`
  std::shared_ptr<const CastRules> of_block;  ///< of the session whose `scale_loss` block runs a backward pass; null: none
  TraceRecorder* recorder = nullptr;          ///< receives casts while `amp::trace` is on
};

/// The calling thread's state.
ThreadCasts& thread_casts();

/// Switches casts on for the calling thread, by `rules`, until the next call; off if null. Other threads to which
/// `at::ThreadLocalState` carries the switch use the newest rules of the process.
void cast_on_this_thread(std::shared_ptr<const CastRules> rules);
/// Stops all threads from casting by `rules`, except inside a `ForwardScope` and a block's backward pass, and switches casts
/// off on the calling thread.
void release_threads(const std::shared_ptr<CastRules>& rules);

/// Saves the calling thread's cast state; `restore` puts it back on this thread.
class SavedCasts {
 public:
  SavedCasts();
  void restore();
  /// Puts a copy of the state on the calling thread: a backward pass computes a part of that thread's forward pass again.
  void resume() const;
  bool inside_forward() const { return casts_.forward != 0; }
  bool inside_forward_by(const std::shared_ptr<const CastRules>& rules) const {
    return inside_forward() && casts_.rules == rules;
  }
  /// True if casts were never switched on for the thread, here or by `at::ThreadLocalState`.
  bool none() const { return !casts_.rules && !included_; }

 private:
  ThreadCasts casts_;
  bool included_, excluded_;
  bool optimizes_scripts_;
};

/// Casts by `rules` for its lifetime, also inside `disable_casts` and within a backward pass; by the newest rules of the
/// process if null. Restores the earlier state.
class CastsAs {
 public:
  explicit CastsAs(std::shared_ptr<const CastRules> rules);
  ~CastsAs() { previous_.restore(); }
  CastsAs(const CastsAs&) = delete;
  CastsAs& operator=(const CastsAs&) = delete;

 private:
  SavedCasts previous_;
};

/// Casts by `rules` during one forward pass of a handle, on any thread; off if null. Restores the earlier state. With grad mode
/// off, its end empties the weight cache, so that no stale cast reaches the next evaluation. On a thread that had no casts, the
/// newest rules of the process stay on afterwards: a loss that follows the forward pass is cast as on the thread that called
/// `initialize`. This does not apply to threads of parallel regions, and to those of autograd, unless they compute a part of a
/// thread's forward pass again.
class ForwardScope {
 public:
  explicit ForwardScope(const std::shared_ptr<CastRules>& rules);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  SavedCasts previous_;
  uint64_t first_node_;
};

/// Active during the backward pass of a `scale_loss` block, whose session has `rules`: on this thread the graph is
/// differentiated by these rules, whatever was initialized since; what was computed outside of handles is computed again by the
/// thread's own rules. Where the session has none, a thread without casts gets the newest rules.
/// Autograd's threads of GPUs use the newest rules. `creates_graph`: the pass runs with `create_graph`.
class BackwardScope {
 public:
  BackwardScope(const std::shared_ptr<CastRules>& rules, bool creates_graph);
  ~BackwardScope() { previous_.restore(); }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  SavedCasts previous_;
};

/// The rules for an operator that is called now, and how they apply.
struct RulesInForce {
  const CastRules* rules = nullptr;  ///< null: nothing is cast
  /// Cast only a mix of 16-bit and FP32 arguments, which LibTorch would refuse, to one type. True in a backward pass, whose
  /// formulas never mix types but whose custom functions may, and in a handle's forward at O2, O3 and O5.
  bool only_mixes = false;
  bool in_backward = false;  ///< `only_mixes` because of a backward pass
  bool disabled = false;     ///< inside `disable_casts`
  bool in_forward = false;   ///< in a handle's forward, or in a part of it that is computed again
};
/// Returns the rules for the thread with the state `here`. If a torch::autograd::Function computes its forward pass again
/// within a backward pass, with grad mode on, that pass is cast as the first one was. Exceptions: a backward pass with
/// `create_graph` and, on threads other than the block's, a pass that keeps its graph. `enable_casts` has its usual effect
/// there.
RulesInForce rules_in_force(const ThreadCasts& here);
/// The rules of the calling thread: of the handle whose forward pass runs, or else of its other operators; null if there are
/// none.
std::shared_ptr<const CastRules> rules_of_this_thread();
/// The rules if the calling thread casts by the lists of O1 and O4; null otherwise.
std::shared_ptr<const CastRules> listed_casts_in_force();
/// Whether this thread's operators go through the engine, which decides on each.
bool are_casts_on();

// Also a part that model handles include.

/// Applies the calling thread's casts to the threads that run its parallel loops (`at::parallel_for`), during the lifetime of
/// the returned object; null if casts are off. `torch::nn::parallel::data_parallel` runs replicas in such a loop; its threads
/// inherit no thread-local state, and it calls a `forward` that is not virtual, possibly of a module without amp. Call this
/// function, and destroy its result, outside of parallel loops. Host only.
std::shared_ptr<void> casts_for_replicas();

/// Leaves the products of this thread in bfloat16 for its lifetime, if `on`.
class Float8Pause {
 public:
  explicit Float8Pause(bool on) : paused_(on && !thread_casts().float8_paused) {
    if (paused_) thread_casts().float8_paused = true;
  }
  ~Float8Pause() {
    if (paused_) thread_casts().float8_paused = false;
  }
  Float8Pause(const Float8Pause&) = delete;
  Float8Pause& operator=(const Float8Pause&) = delete;

 private:
  bool paused_;
};

/// Receives what the cast engine does while `amp::trace` is on.
class TraceRecorder {
 public:
  virtual ~TraceRecorder() = default;
  /// The running operator had a tensor cast, or found its cast in the cache.
  virtual void add_cast(c10::ScalarType from, c10::ScalarType to, bool cached) = 0;
  /// The running operator, or an operator that it calls, computes in FP32 for 16-bit CPU tensors.
  virtual void add_float32() = 0;

  TraceRecorder* outer = nullptr;  ///< the recorder of the enclosing trace
};

}  // namespace apex::amp::detail
