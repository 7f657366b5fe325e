#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <ATen/core/Tensor.h>
#include <apex_cpp/amp/tensors/tensor_version.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace apex::amp::detail {

/// 16-bit copies of FP32 weights, so that a weight is cast once an iteration and all of its uses share one cast node
/// (CACHE-01, CACHE-08). Apex: `_amp_state.handle.cache`.
///
/// An entry holds for one tensor, dtype, storage, place in the storage and version, so a weight that was written in place,
/// loaded, or given other data is cast anew (Apex returned the old values: CACHE-07). In grad mode it must also require grad as
/// the weight does (CACHE-05). A write through `tensor.data()`, as `torch::optim::SGD` does it, leaves no trace; therefore an
/// entry outlives the forward pass of a handle in which it was made only
/// - in grad mode, so that an iteration shares its casts, and
/// - for a weight that an optimizer of amp's trains: its `step` and `zero_grad`, and both ends of `scale_loss`, clear.
/// A later forward pass of a handle that finds such an entry writes the weight's present values into it. So a handle always
/// runs with the weights as they are, whoever wrote them, and so does every model that no optimizer of amp's trains. One case
/// remains: the original model's forward, called on itself in grad mode, after a write through `data()` to weights that an
/// optimizer of amp's trains, where the same iteration has cast them before; `amp::clear_cast_cache` is for that.
/// Thread-safe.
class WeightCache {
 public:
  /// An optimizer of amp's trains `weight`: its casts may outlive a forward pass.
  void keep(const at::Tensor& weight);
  /// `weight`, an FP32 leaf, in `dtype`; `hit` tells whether it was there. `forward`: number of the handle's forward pass that
  /// runs on this thread, 0 for none.
  at::Tensor cast(const at::Tensor& weight, c10::ScalarType dtype, uint64_t forward, bool& hit);
  void clear();
  /// Weights that have casts here.
  size_t size() const;

 private:
  /// Where a tensor lies in its storage: `set_data` may give a weight another place in the same one.
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
    bool kept;            // beyond the forward pass
    uint64_t forward;     // in which `cast` was last written
    at::Tensor cast;
    bool holds_for(const at::Tensor& tensor, uint64_t in_forward) const;
  };
  struct Fp32Rule {};
  using Entries = std::vector<Entry>;  // of a weight, one a dtype

  static Entry* in_dtype(Entries* entries, c10::ScalarType dtype);
  /// The cast that is there, or an undefined tensor. Writes the weight into one of an earlier forward pass.
  at::Tensor find(const at::Tensor& weight, c10::ScalarType dtype, uint64_t forward);

  mutable std::mutex mutex_;
  WeakTensorMap<Fp32Rule> kept_;
  WeakTensorMap<Entries> entries_;
};

}  // namespace apex::amp::detail
