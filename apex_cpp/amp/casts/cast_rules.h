#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/float8/product.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/amp/tensors/tensor_version.h>
#include "opt_levels/resolve.h"

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace apex::amp::detail {

/// A set of floating-point types.
class FloatTypes {
 public:
  constexpr FloatTypes() = default;
  /// The set of one type; empty for types that the engine does not cast (integers, complex numbers, 8-bit floats).
  constexpr explicit FloatTypes(c10::ScalarType type) : bits_(bit_of(type)) {}

  static constexpr FloatTypes all() { return FloatTypes(uint8_t{15}); }
  constexpr bool has(c10::ScalarType type) const { return (bits_ & bit_of(type)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool is_mix() const { return (bits_ & (bits_ - 1)) != 0; }
  constexpr FloatTypes without(FloatTypes other) const { return FloatTypes(static_cast<uint8_t>(bits_ & ~other.bits_)); }
  constexpr FloatTypes operator|(FloatTypes other) const { return FloatTypes(static_cast<uint8_t>(bits_ | other.bits_)); }
  constexpr FloatTypes& operator|=(FloatTypes other) { return *this = *this | other; }
  constexpr bool operator==(FloatTypes other) const { return bits_ == other.bits_; }

 private:
  constexpr explicit FloatTypes(uint8_t bits) : bits_(bits) {}
  static constexpr uint8_t bit_of(c10::ScalarType type) {
    switch (type) {
      case c10::ScalarType::Half:
        return 1;
      case c10::ScalarType::BFloat16:
        return 2;
      case c10::ScalarType::Float:
        return 4;
      case c10::ScalarType::Double:
        return 8;
      default:
        return 0;
    }
  }
  uint8_t bits_ = 0;
};

inline constexpr FloatTypes kLowTypes = FloatTypes(c10::kHalf) | FloatTypes(c10::kBFloat16);

/// The type of a floating-point tensor; empty for an undefined tensor, and for a C++ number wrapped in a tensor, which is never
/// cast.
inline FloatTypes float_type_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return {};
  return FloatTypes(tensor.scalar_type());
}

}  // namespace apex::amp::detail

namespace torch::autograd {
struct AutogradMeta;
}

namespace apex::amp::detail {

/// Whether this thread casts weights without the cache.
bool& weight_cache_is_off();

/// 16-bit copies of FP32 weights: a weight is cast once per iteration, and all uses share one cast node (CACHE-01, CACHE-08).
/// Apex: `_amp_state.handle.cache`.
///
/// An entry is valid for one tensor, dtype, storage, place in the storage and version. A weight that was written in place,
/// loaded, or given other data is therefore cast again; Apex returned the old values (CACHE-07). In grad mode the entry must
/// also require grad as the weight does (CACHE-05). A write through `tensor.data()`, as in `torch::optim::SGD`, does not change
/// the version. Therefore an entry outlives the forward pass of the handle that made it only
/// - in grad mode, so that an iteration shares its casts, and
/// - for a weight that an amp optimizer trains: `step`, `zero_grad` and both ends of `scale_loss` clear the cache.
/// A later forward pass of a handle that finds such an entry copies the weight's current values into it. So a handle always
/// begins with current weights, no matter who wrote them, and so does every model without an amp optimizer. Two cases remain: a
/// forward that itself writes a weight through `data()` after it has used it, and the original model's forward, called in grad
/// mode, after a write through `data()` to weights of an amp optimizer that the same iteration has cast already. Call
/// `amp::clear_cast_cache` there.
class WeightCache {
 public:
  /// Lets casts of `weight`, which an amp optimizer trains, outlive a forward pass.
  void keep(const at::Tensor& weight);
  /// Returns `weight`, an FP32 leaf, cast to `dtype`; `hit` is true if the cast was in the cache. `forward`: number of the
  /// handle's forward pass on this thread, 0 for none. `is_named` says whether a model names the weight: the casts of other
  /// leaves, such as an input that requires grad, are kept only if an optimizer trains them.
  at::Tensor cast(const at::Tensor& weight, c10::ScalarType dtype, uint64_t forward, bool& hit,
                  c10::function_ref<bool()> is_named);
  void clear();
  /// At the end of a handle's forward pass: drops the casts that do not outlive it, or all without grad mode.
  void end_forward();
  /// Number of weights with casts.
  size_t size() const;

 private:
  /// Place of a tensor in its storage: `set_data` may move a weight within the same storage.
  struct Place {
    explicit Place(const at::Tensor& tensor)
        : offset(tensor.storage_offset()), sizes(tensor.sizes()), strides(tensor.strides()) {}
    bool is_of(const at::Tensor& tensor) const {
      return tensor.storage_offset() == offset && tensor.sizes() == sizes && tensor.strides() == strides;
    }
    int64_t offset;
    c10::DimVector sizes, strides;
  };
  struct Entry {
    TensorVersion trace;  // of the weight
    Place place;          // of the weight
    bool requires_grad;   // of `cast`
    bool kept;            // outlives the forward pass
    uint64_t forward;     // in which `cast` was last written
    at::Tensor cast;
    bool holds_for(const at::Tensor& tensor, uint64_t in_forward) const;
  };
  struct Kept {};
  using Entries = std::vector<Entry>;  // of one weight, one per dtype

  static Entry* in_dtype(Entries* entries, c10::ScalarType dtype);
  /// The valid cast, or an undefined tensor. Updates a cast of an earlier forward pass with the current values.
  at::Tensor find(const at::Tensor& weight, c10::ScalarType dtype, uint64_t forward);

  mutable std::mutex mutex_;
  bool has_unkept_ = false;  // whether a cast was made that does not outlive the forward pass
  WeakTensorMap<Kept> kept_;
  WeakTensorMap<Entries> entries_;
};

/// The cast rules of one `initialize` call: its cast lists as a table, the 16-bit type, and the weight cache. Immutable except
/// for the cache, so that threads share it.
class CastRules {
 public:
  enum class Mode : unsigned char {
    casts,  ///< O1 and O4: by the lists
    match   ///< O2, O3, O5: FP32 arguments are cast to the type of 16-bit arguments; outside of handles losses run in FP32,
            ///< unless the options ask for 16-bit outputs
  };

  /// Returns null if the settings cast no operator (O0). Errors: ValueError for a list that names an operator unknown to
  /// LibTorch.
  static std::shared_ptr<CastRules> from(const opt_levels::Settings& settings, std::shared_ptr<const ParameterNames> names);

  Mode mode() const { return mode_; }
  c10::ScalarType low_type() const { return low_type_; }
  /// The 16-bit types for which operators on CPU tensors compute in FP32. Call the setter before other threads see the rules.
  FloatTypes widened() const { return widened_; }
  /// The 16-bit types for which apex_cpp's CPU kernels replace LibTorch's where apex_cpp has one.
  FloatTypes own_kernels() const { return own_kernels_; }
  void set_cpu_kernels(FloatTypes widened, FloatTypes own_kernels) {
    widened_ = widened;
    own_kernels_ = own_kernels;
  }
  /// True if O1 and O4 do not cast FP32 and FP64 CPU tensors, because the models are on another device. Call the setter before
  /// other threads see the rules.
  bool leaves_cpu_tensors() const { return leaves_cpu_tensors_; }
  void set_leaves_cpu_tensors(bool on) { leaves_cpu_tensors_ = on; }
  bool prints_casts() const { return prints_casts_; }
  CastPolicy policy(const OperatorSlot& slot) const {
    return slot.index < policies_.size() ? policies_[slot.index] : CastPolicy::none;
  }
  /// The policy for a mix of 16-bit and FP32 arguments that LibTorch would refuse, where O1 and O4 cast nothing else: in a
  /// backward pass.
  CastPolicy policy_for_mixes(const OperatorSlot& slot) const {
    return slot.index < policies_for_mixes_.size() ? policies_for_mixes_[slot.index] : CastPolicy::none;
  }
  /// Whether `float32_functions` names the operator: it runs in FP32 whatever its policy is.
  bool keeps_float32(const OperatorSlot& slot) const {
    return slot.index < kept_functions_.size() && kept_functions_[slot.index];
  }
  /// Whether `float32_modules` names modules, and whether `tensor` is a parameter of such a module, or a view of one.
  bool keeps_modules() const { return !kept_modules_.empty(); }
  bool keeps_float32(const at::Tensor& tensor) const;
  /// Whether products are rounded to FP8, and convolutions.
  bool rounds_to_float8() const { return float8_.recipe != Float8Recipe::none; }
  bool rounds_convolutions() const { return rounds_convolutions_; }
  /// The operators that the rules round, without overloads: "aten::linear".
  std::set<std::string> float8_operators() const;
  /// How operators with this weight, a parameter of the models, are rounded; null for a product without a weight.
  Float8Rounding float8(const std::string* weight) const;
  /// The maxima of the recipe `delayed`; null with any other. Call the setter before other threads see the rules.
  const std::shared_ptr<Float8History>& float8_history() const { return float8_history_; }
  void set_float8_history(std::shared_ptr<Float8History> history) { float8_history_ = std::move(history); }
  /// The name of `tensor`, a parameter of the models or a view of one. Null for other tensors.
  const std::string* find_name(const at::Tensor& tensor) const;
  /// Lets `clone` be cast, or kept by `float32_modules` or `bfloat16_modules`, as `original`. Callable from any thread.
  void add_clone(const at::Tensor& original, const at::Tensor& clone);
  /// The name of the parameter of which `tensor` is a clone, or a view of one. Null for other tensors.
  const std::string* find_clone(const at::Tensor& tensor) const;
  /// Whether a parameter is of one of `bfloat16_modules`: its products stay in bfloat16.
  bool keeps_bfloat16(const std::string& parameter) const { return is_within(parameter, bfloat16_modules_); }
  /// True for a leaf that is a parameter of the models or requires grad, and for a view of such a leaf.
  bool is_parameter(const at::Tensor& tensor) const;
  /// "'fc.weight'"; for a parameter outside the models, its shape.
  std::string name_of(const at::Tensor& parameter) const;
  /// A cheap test that is false for most activations. True for FP32 tensors known to autograd that are leaves or views.
  static bool may_be_weight(const at::Tensor& tensor);
  /// Casts `tensor` to `dtype` through the cache if it is a weight (an FP32 parameter, CACHE-02) or a plain transpose of one of
  /// the models, `weight.t()`, through which gradients pass unchanged. A transpose of an input stays in the graph: programs ask
  /// for its gradient. Returns an undefined tensor otherwise.
  at::Tensor cast_weight(const at::Tensor& tensor, c10::ScalarType dtype, uint64_t forward, bool& hit) const;
  WeightCache& cache() const { return cache_; }

  /// Stops all threads from casting by these rules outside of the handles' forward passes.
  void release_threads();
  bool released_threads() const { return released_threads_.load(std::memory_order_relaxed); }

 private:
  CastRules(Mode mode, c10::ScalarType low_type, bool prints_casts, std::shared_ptr<const ParameterNames> names);
  bool is_leaf_parameter(const at::Tensor& tensor, const torch::autograd::AutogradMeta& meta) const;
  void keep_functions(const std::vector<std::string>& names);

  Mode mode_;
  c10::ScalarType low_type_;
  bool prints_casts_;
  std::shared_ptr<const ParameterNames> names_;
  std::vector<CastPolicy> policies_, policies_for_mixes_;  // by the slots' indices
  std::vector<bool> kept_functions_;                       // by the slots' indices
  std::vector<std::string> kept_modules_;                  // paths
  Float8Rounding float8_;
  bool rounds_convolutions_ = false;
  std::shared_ptr<Float8History> float8_history_;
  std::vector<std::string> bfloat16_modules_;  // paths
  mutable WeightCache cache_;
  mutable std::mutex clones_mutex_;
  ParameterNames clones_;  // by the names of their originals
  std::atomic<bool> has_clones_{false};
  FloatTypes widened_, own_kernels_;
  bool leaves_cpu_tensors_ = false;
  std::atomic<bool> released_threads_{false};
};

/// The FP8 scales of the calling thread's rules, for a part of a forward pass that is computed again.
class SavedFloat8Scales {
 public:
  SavedFloat8Scales();
  /// For the lifetime of the result.
  UseFloat8Scales use() const { return UseFloat8Scales(history_.get(), scales_); }

 private:
  std::shared_ptr<Float8History> history_;
  Float8History::Scales scales_;
};

}  // namespace apex::amp::detail
