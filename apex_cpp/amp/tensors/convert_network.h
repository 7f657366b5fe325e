#pragma once

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

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
