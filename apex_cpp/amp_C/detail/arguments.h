#pragma once

#include <apex_cpp/multi_tensor_apply/tensor_lists.h>
#include "kernels/optimizers.h"

#include <ATen/core/Tensor.h>

#include <vector>

// Checks and conversions of arguments that several functions of amp_C take.
namespace apex::amp_C::detail {

/// Throws unless `tensor` holds one element of `dtype` on `device`.
void check_one_element(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype, c10::Device device);

/// Throws unless `tensor` is contiguous and holds `count` float32 elements on `device`, one for each tensor of a list.
void check_one_per_tensor(const char* op, const char* name, const at::Tensor& tensor, size_t count, c10::Device device);

/// Converts a bool that Apex passes as an int. ValueError unless it is 0 or 1.
bool choice(const char* op, const char* name, int value);

/// Sets the running means' part of the settings. ValueError if `bias_correction` is neither 0 nor 1.
void set_means(const char* op, kernels::MomentSettings& settings, double beta1, double beta2, double eps, int bias_correction);

/// The same, and the number of the step.
void set_moments(const char* op, kernels::MomentSettings& settings, double beta1, double beta2, double eps, int step,
                 int bias_correction);

/// The step tensors from arguments of one element each, on the flag's device: `lr` and `inv_scale` float32, `step` int32.
/// Throws for others, and for a `step` below 1 on a CPU whose flag does not stop the update. Without `bias_correction` the step
/// is not used.
kernels::StepTensors step_tensors(const char* op, const at::Tensor& noop_flag, const at::Tensor& step, bool bias_correction,
                                  const at::Tensor& lr, const at::Tensor& inv_scale);

/// A list for an update that computes in float32: the tensors themselves, or float32 copies if they are float64.
class Float32List {
 public:
  explicit Float32List(const std::vector<at::Tensor>& tensors);

  at::TensorList tensors() const { return copies_.empty() ? tensors_ : copies_; }

  /// Writes the copies back to the tensors. Does nothing if `stop` is defined and not 0.
  void write_back(const at::Tensor& stop = {}) const;

 private:
  const std::vector<at::Tensor>& tensors_;
  std::vector<at::Tensor> copies_;
};

/// How a function uses a list. `none`: it ignores the list, which may hold anything.
enum class Use { none, read, write };

/// For a list that may be float64, besides float16, bfloat16 and float32.
constexpr bool kAlsoDouble = true;

/// A list that a function takes.
struct Role {
  const char* name;
  Use use;
  bool takes_double = !kAlsoDouble;
};

/// Runs check_tensor_lists and the checks of the function's kernels, with `op` as the name in errors: supported dtypes, and no
/// output that shares memory with another tensor. A function may run several kernels; checking first ensures that none of them
/// throws after another has changed something.
void check_roles(const char* op, int64_t chunk_size, const at::Tensor& noop_flag, const TensorLists& tensor_lists,
                 c10::ArrayRef<Role> roles);

}  // namespace apex::amp_C::detail
