#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

namespace apex::amp::detail {

/// A module that counts as a batch norm where `keep_batchnorm_fp32` and fp16_utils spare those, beside LibTorch's own.
class BatchNormModule {
 public:
  virtual bool is_affine() const = 0;

 protected:
  ~BatchNormModule() = default;
};

/// The 16-bit types that a model may be trained in. Parameters of these get FP32 masters, and checkpoints widen them.
constexpr bool is_low_precision(c10::ScalarType dtype) { return dtype == c10::kHalf || dtype == c10::kBFloat16; }
/// The types that amp, the fused optimizers and DistributedFusedAdam train in: those and float32.
constexpr bool is_amp_float(c10::ScalarType dtype) { return is_low_precision(dtype) || dtype == c10::kFloat; }
/// The floating types of dense real numbers that tensors are trained in: those and float32 and float64.
constexpr bool is_real_float(c10::ScalarType dtype) { return is_amp_float(dtype) || dtype == c10::kDouble; }

}  // namespace apex::amp::detail

// Modules cast in place, for `amp::initialize` and under fp16_utils's names, where they are described.
namespace apex::amp::detail {

void convert_module(torch::nn::Module& module, c10::ScalarType dtype);
void convert_network(torch::nn::Module& network, c10::ScalarType dtype);
void convert_all(torch::nn::Module& network, c10::ScalarType dtype);

/// Casts tensors where they are, each with its gradient. Parameters that `set_data` has tied, several tensors over one memory,
/// share memory after the cast as well: the second gets the first one's. Holds the memory of before of such tensors.
class CastsInPlace {
 public:
  explicit CastsInPlace(c10::ScalarType dtype) : dtype_(dtype) {}
  c10::ScalarType dtype() const { return dtype_; }
  void cast(torch::Tensor& tensor);

 private:
  struct Shared {
    at::Tensor before, after;
  };
  c10::ScalarType dtype_;
  std::vector<Shared> shared_;
};

/// All parameters and buffers but those that `spares` says, which gets the path of each within the network and its module.
using SparesTensor = std::function<bool(const std::string& path, const torch::nn::Module& module)>;
void convert_others(torch::nn::Module& network, CastsInPlace& casts, const SparesTensor& spares);
bool is_affine_batch_norm(const torch::nn::Module& module);

}  // namespace apex::amp::detail
