#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>

namespace apex::amp::detail {

/// The dispatch key of the cast engine: above autograd, so that casts are recorded, and of a backend that no longer exists, so
/// that nobody else has kernels on it. No tensor carries it; a thread includes it while casts are on.
constexpr c10::DispatchKey kCastKey = c10::DispatchKey::AutocastIPU;

/// The key of operators that compute in FP32 for 16-bit CPU tensors: below autograd, which therefore saves the 16-bit tensors
/// and whose backward formulas come by as well, and of a system that has left LibTorch. It is included where `kCastKey` is.
constexpr c10::DispatchKey kCpuFallbackKey = c10::DispatchKey::Fake;
constexpr c10::DispatchKeySet kBelowCpuFallbackKey(c10::DispatchKeySet::FULL_AFTER, kCpuFallbackKey);

/// What is left to dispatch to after the engine's kernel.
constexpr c10::DispatchKeySet kBelowCastKey(c10::DispatchKeySet::FULL_AFTER, kCastKey);

/// Off inside an operator that was cast: neither the engine nor torch's autocast touches what it is made of.
constexpr c10::DispatchKeySet kOffInside = c10::autocast_dispatch_keyset | c10::DispatchKeySet(kCastKey);

}  // namespace apex::amp::detail

// Part of every model handle: what a user's file reads of the engine is this and no more.
namespace apex::amp::detail {

class CastRules;
class TraceRecorder;

/// What the engine does on one thread.
struct ThreadCasts {
  std::shared_ptr<const CastRules> rules;  ///< null: nothing, or what `at::ThreadLocalState` carried here
  bool disabled = false;                   ///< inside `disable_casts`
  int64_t graph_task = -1;                 ///< the backward pass that switched casts on; -1: none
  uint64_t forward = 0;                    ///< number of the outermost handle's forward that is running; 0: none
  bool plain_pass = false;                 ///< a block's backward pass runs that makes no graph of itself
  TraceRecorder* recorder = nullptr;       ///< where casts are reported while `amp::trace` is on
};

/// The calling thread's state.
ThreadCasts& thread_casts();

/// Switches casts on for the calling thread until further notice, by `rules`; off if null. Other threads to which
/// `at::ThreadLocalState` carries the switch follow the newest rules of the process.
void cast_on_this_thread(std::shared_ptr<const CastRules> rules);
/// No thread casts by `rules` any more, and the calling one by none, except inside a `ForwardScope`.
void release_threads(const std::shared_ptr<CastRules>& rules);

/// The casts of the calling thread as they are now, to be put back.
class SavedCasts {
 public:
  SavedCasts();
  void restore();
  bool inside_forward() const { return casts_.forward != 0; }
  /// The thread has never been told to cast, nor was the switch carried to it.
  bool none() const { return !casts_.rules && !included_; }

 private:
  ThreadCasts casts_;
  bool included_, excluded_;
  bool optimizes_scripts_;
};

/// Casts by `rules` for its lifetime, inside `disable_casts` and within a backward pass too; by the newest rules of the process
/// if null. Restores what was before.
class CastsAs {
 public:
  explicit CastsAs(std::shared_ptr<const CastRules> rules);
  ~CastsAs() { previous_.restore(); }
  CastsAs(const CastsAs&) = delete;
  CastsAs& operator=(const CastsAs&) = delete;

 private:
  SavedCasts previous_;
};

/// Casts by `rules` for one forward pass of a handle, on whatever thread it runs; off if null. Restores what was before.
/// Where grad mode is off, its end empties the cache: nothing stale is left for the next evaluation. A thread that had no casts
/// goes on with the newest rules of the process: what follows the forward there, a loss say, is cast as on the thread that
/// called `initialize`. Not so on threads that are not the program's: in a backward pass, or in a parallel region.
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

/// A block's backward pass. On a thread that has no casts what the forward pass made elsewhere is differentiated as it is
/// there. `creates_graph`: of the pass itself.
class BackwardScope {
 public:
  explicit BackwardScope(bool creates_graph);
  ~BackwardScope() { previous_.restore(); }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  SavedCasts previous_;
};

/// The rules that hold for an operator that is called now, and how far.
struct RulesInForce {
  const CastRules* rules = nullptr;  ///< null: nothing is cast
  /// Only what LibTorch would refuse, 16-bit and FP32 arguments of one call, is brought to one type: in a backward pass, whose
  /// formulas never mix them while a program's own may, and in a handle's forward at O2, O3 and O5.
  bool only_mixes = false;
  bool in_backward = false;  ///< of the two, the former
  bool disabled = false;     ///< by `disable_casts`
  bool in_forward = false;   ///< of a handle, or in what is computed again of one
};
/// For the thread whose state this is. What a function of the program's own computes again within a backward pass, with grad
/// mode on, is cast as where the function was applied; not so in a pass that makes a graph of itself, nor, on threads other
/// than the block's, in one that keeps its graph. `enable_casts` holds there as anywhere.
RulesInForce rules_in_force(const ThreadCasts& here);
/// The rules by which the calling thread casts operators by the lists of O1 and O4, or null.
std::shared_ptr<const CastRules> listed_casts_in_force();

}  // namespace apex::amp::detail

// Part of every model handle: what a user's file reads of it is this and no more.
namespace apex::amp::detail {

/// The calling thread's casts, put on the threads that share its parallel loops (`at::parallel_for`) for as long as what it
/// answers lives; null where no casts are on. `torch::nn::parallel::data_parallel` runs replicas in such a loop, whose threads
/// have the state of no other, and calls a `forward` that is not virtual, of a module class that need not be amp's. Host only;
/// to be called, and given back, outside of parallel loops.
std::shared_ptr<void> casts_for_replicas();

/// Where the engine reports casts while `amp::trace` is on.
class TraceRecorder {
 public:
  virtual ~TraceRecorder() = default;
  /// A tensor of the operator that is being called was cast, or its cast was found in the cache.
  virtual void add_cast(c10::ScalarType from, c10::ScalarType to, bool cached) = 0;
  /// The operator that is being called, or one that it is made of, computes in FP32 for 16-bit CPU tensors.
  virtual void add_float32() = 0;

  TraceRecorder* outer = nullptr;  ///< that of the trace within which this one began
};

}  // namespace apex::amp::detail
