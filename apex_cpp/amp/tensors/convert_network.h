#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

namespace apex::amp::detail {

/// Base of modules that `keep_batchnorm_fp32` and fp16_utils treat as batch norms, like LibTorch's own.
class BatchNormModule {
 public:
  virtual bool is_affine() const = 0;

 protected:
  ~BatchNormModule() = default;
};

/// Whether `dtype` is float16 or bfloat16. Parameters of these types get FP32 masters; checkpoints store them in FP32.
constexpr bool is_low_precision(c10::ScalarType dtype) { return dtype == c10::kHalf || dtype == c10::kBFloat16; }
/// Whether amp, the fused optimizers and DistributedFusedAdam train parameters of `dtype`: float16, bfloat16 or float32.
constexpr bool is_amp_float(c10::ScalarType dtype) { return is_low_precision(dtype) || dtype == c10::kFloat; }
/// Whether `dtype` is float16, bfloat16, float32 or float64.
constexpr bool is_real_float(c10::ScalarType dtype) { return is_amp_float(dtype) || dtype == c10::kDouble; }

// Casts modules in place, for `amp::initialize` and fp16_utils. fp16_utils documents the three functions below.

void convert_module(torch::nn::Module& module, c10::ScalarType dtype);
void convert_network(torch::nn::Module& network, c10::ScalarType dtype);
void convert_all(torch::nn::Module& network, c10::ScalarType dtype);

/// Casts tensors in place, each with its gradient. Parameters tied by `set_data` (several tensors over one storage) stay tied:
/// they share the storage of the first cast. Keeps the old storage of tied parameters alive.
class InPlaceCaster {
 public:
  explicit InPlaceCaster(c10::ScalarType dtype) : dtype_(dtype) {}
  c10::ScalarType dtype() const { return dtype_; }
  void cast(torch::Tensor& tensor);

 private:
  struct Shared {
    at::Tensor before, after;
  };
  c10::ScalarType dtype_;
  std::vector<Shared> shared_;
};

/// Whether a parameter or buffer keeps its type: `path` is its path within the network, `module` owns it.
using KeepsTensor = std::function<bool(const std::string& path, const torch::nn::Module& module)>;
/// Casts all parameters and buffers for which `keeps` is false.
void convert_unless(torch::nn::Module& network, InPlaceCaster& casts, const KeepsTensor& keeps);
/// Whether `module` is a LibTorch or apex_cpp batch norm with weight and bias.
bool is_affine_batch_norm(const torch::nn::Module& module);

}  // namespace apex::amp::detail
