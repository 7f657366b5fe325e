#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/weight_cache.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include "opt_levels/resolve.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace apex::amp::detail {

/// A set of floating-point types.
class FloatTypes {
 public:
  constexpr FloatTypes() = default;
  /// The type alone; nothing for a type that the engine leaves alone (integers, complex numbers, 8-bit floats).
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

/// The type of a floating tensor; nothing for an undefined one, and for a C++ number in a tensor's guise, which stays as it is.
inline FloatTypes float_type_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return {};
  return FloatTypes(tensor.scalar_type());
}

}  // namespace apex::amp::detail

namespace torch::autograd {
struct AutogradMeta;
}

namespace apex::amp::detail {

/// What one `initialize` call wants of every operator: its cast lists as a table, the 16-bit type, and the weight cache.
/// Immutable but for the cache, so that threads share it.
class CastRules {
 public:
  enum class Mode : unsigned char {
    casts,  ///< O1 and O4: by the lists
    match   ///< O2, O3, O5: FP32 arguments follow 16-bit ones; outside of handles losses run in FP32 unless 16-bit outputs are
            ///< asked for
  };

  /// Null where the settings cast no operator (O0). Errors: ValueError for a list that names an operator which LibTorch does
  /// not know.
  static std::shared_ptr<CastRules> from(const opt_levels::Settings& settings, std::shared_ptr<const ParameterNames> names);

  Mode mode() const { return mode_; }
  c10::ScalarType low_type() const { return low_type_; }
  /// The 16-bit types for which operators on CPU tensors compute in FP32. Set before other threads see the rules.
  FloatTypes widened() const { return widened_; }
  /// Those whose operators on CPU tensors have kernels of ours in place of LibTorch's, where there is one.
  FloatTypes own_kernels() const { return own_kernels_; }
  void set_cpu_kernels(FloatTypes widened, FloatTypes own_kernels) {
    widened_ = widened;
    own_kernels_ = own_kernels;
  }
  /// Whether CPU tensors in FP32 and FP64 stay so at O1 and O4: the models are elsewhere. Set before other threads see the
  /// rules.
  bool leaves_cpu_tensors() const { return leaves_cpu_tensors_; }
  void set_leaves_cpu_tensors(bool on) { leaves_cpu_tensors_ = on; }
  bool prints_casts() const { return prints_casts_; }
  CastPolicy policy(const OperatorSlot& slot) const {
    return slot.index < policies_.size() ? policies_[slot.index] : CastPolicy::none;
  }
  /// Whether the program wants the operator in FP32 whatever its policy is (`float32_functions`).
  bool keeps_float32(const OperatorSlot& slot) const {
    return slot.index < kept_functions_.size() && kept_functions_[slot.index];
  }
  /// Whether it wants modules in FP32 (`float32_modules`), and whether `tensor` is a parameter of one, or a view of one.
  bool keeps_modules() const { return !kept_modules_.empty(); }
  bool keeps_float32(const at::Tensor& tensor) const;
  /// A leaf that is a parameter of the models or requires grad, or a view of one.
  bool is_parameter(const at::Tensor& tensor) const;
  /// "'fc.weight'", or the shape of one that is in no model.
  std::string name_of(const at::Tensor& parameter) const;
  /// False for most activations, at once: FP32 that took part in autograd, and no result of an operator other than a view.
  static bool may_be_weight(const at::Tensor& tensor);
  /// A tensor that may be a weight in `dtype` through the cache, if it is a weight, which is an FP32 parameter (CACHE-02), or
  /// the transpose of one, `weight.t()`, with nothing of its own in the way of gradients; undefined otherwise.
  at::Tensor cast_weight(const at::Tensor& tensor, c10::ScalarType dtype, uint64_t forward, bool& hit) const;
  WeightCache& cache() const { return cache_; }

  /// No thread casts by these rules any more, outside of the handles' forward passes.
  void release_threads();
  bool released_threads() const { return released_threads_.load(std::memory_order_relaxed); }

 private:
  CastRules(Mode mode, c10::ScalarType low_type, bool prints_casts, std::shared_ptr<const ParameterNames> names);
  bool is_leaf_parameter(const at::Tensor& tensor, const torch::autograd::AutogradMeta& meta) const;
  void set_policies(const std::map<std::string, CastPolicy>& lists, bool allow_banned);
  void keep_functions(const std::vector<std::string>& names);

  Mode mode_;
  c10::ScalarType low_type_;
  bool prints_casts_;
  std::shared_ptr<const ParameterNames> names_;
  std::vector<CastPolicy> policies_;
  std::vector<bool> kept_functions_;       // by the slots' indices
  std::vector<std::string> kept_modules_;  // paths
  mutable WeightCache cache_;
  FloatTypes widened_, own_kernels_;
  bool leaves_cpu_tensors_ = false;
  std::atomic<bool> released_threads_{false};
};

}  // namespace apex::amp::detail
