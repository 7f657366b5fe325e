#pragma once

#include <apex_cpp/multi_tensor_apply/tensor_lists.h>
#include "kernels/optimizers.h"

#include <ATen/core/Tensor.h>

#include <vector>

// Arguments that several functions of amp_C take.
namespace apex::amp_C::detail {

/// Throws unless `tensor` holds one element of `dtype` on `device`.
void check_one_element(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype, c10::Device device);

/// Throws unless `tensor` is contiguous and holds `count` elements of float32 on `device`: one for each tensor of a list.
void check_one_per_tensor(const char* op, const char* name, const at::Tensor& tensor, size_t count, c10::Device device);

/// An argument that Apex has as an int: 0 or 1. ValueError for others.
bool choice(const char* op, const char* name, int value);

/// The running means' part of a control, and the number of the step.
void set_moments(const char* op, kernels::MomentControl& control, double beta1, double beta2, double eps, int step,
                 int bias_correction);

/// The same with arguments on the tensors' device, of one element each: `lr` and `inv_scale` float32, `step` int32.
void set_device_moments(const char* op, kernels::MomentControl& control, c10::Device device, double beta1, double beta2,
                        double eps, const at::Tensor& step, int bias_correction, const at::Tensor& lr,
                        const at::Tensor& inv_scale);

/// A list for an update that computes in float32: the tensors themselves, or float32 copies of float64 ones.
class Float32List {
 public:
  explicit Float32List(const std::vector<at::Tensor>& tensors);

  at::TensorList tensors() const { return copies_.empty() ? tensors_ : copies_; }

  /// Gives the values of copies to the tensors, unless `stop`, if defined, is not 0.
  void write_back(const at::Tensor& stop = {}) const;

 private:
  const std::vector<at::Tensor>& tensors_;
  std::vector<at::Tensor> copies_;
};

/// What a function does to the tensors of a list. One that it does not look at may hold anything.
enum class Use { none, read, write };

/// Of a list that may be float64, beside float16, bfloat16 and float32.
constexpr bool kAlsoDouble = true;

/// A list that a function takes.
struct Role {
  const char* name;
  Use use;
  bool takes_double = !kAlsoDouble;
};

/// check_tensor_lists for a function of these lists, and all that its kernels ask of their tensors, in its own name: that
/// dtypes are supported and no output shares memory with another tensor. A function may run several kernels, and the last must
/// not refuse what the first has changed.
void check_roles(const char* op, int64_t chunk_size, const at::Tensor& noop_flag, const TensorLists& tensor_lists,
                 c10::ArrayRef<Role> roles);

}  // namespace apex::amp_C::detail
