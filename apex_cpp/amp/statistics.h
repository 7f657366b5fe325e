#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace apex::amp {

/// The small values that a 16-bit type loses: the number of finite nonzero values that become 0, and of those that become
/// subnormal and lose digits. Shares are relative to all finite nonzero values; 0 if there are none.
struct Underflow {
  int64_t zero = 0;
  int64_t subnormal = 0;
  double zero_share = 0;
  double subnormal_share = 0;
};

/// Statistics of one tensor. Counts are exact. `abs_max`, `mean` and `norm` (L2) cover the finite values and are summed in
/// float64; 0 if there are none.
struct TensorStatistics {
  std::string name;
  int64_t numel = 0;
  double abs_max = 0;
  double mean = 0;
  double norm = 0;
  int64_t zeros = 0;
  int64_t inf = 0;
  int64_t nan = 0;
  /// The number of finite values x != 0 with 2^exponent <= |x| < 2^(exponent + 1), for each exponent that occurs. Values that
  /// are subnormal in the tensor's own dtype count by their true exponents.
  std::map<int, int64_t> exponents;

  /// Counts the values that underflow if they are multiplied by `scale` and rounded once to the nearest float16 or bfloat16
  /// (ties to even, subnormal results kept). Exact for a power of two, such as the scales of dynamic loss scaling. Another
  /// scale counts as the next smaller power of two, at which at least as many values underflow. Errors: ValueError for a scale
  /// that is not finite and above 0, or for another dtype.
  Underflow underflow(double scale, c10::ScalarType dtype) const;

  /// Counts of an exponent's values that `underflow` needs: the values equal to the power of two; the values that round up to
  /// the next power of two in bfloat16 but not in float16; and the values that round up in both.
  struct Edges {
    int64_t at_power = 0;
    int64_t near_next_bfloat16 = 0;
    int64_t near_next_float16 = 0;
  };
  std::map<int, Edges> edges;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns one record for each tensor, in order, from one pass over memory. Dtypes: float16, bfloat16, float32 and float64. Any
/// shape, number of elements and strided layout; a tensor with gaps between its elements is copied first. Devices: CPU, and
/// CUDA in builds with CUDA; tensors of other devices are copied to the CPU first. Waits for the device. The results have the
/// same bits for any number of threads. Names: the given names; otherwise the parameter's name in the models of the newest
/// `initialize`, or "tensor 3", counted from 0. Errors: TypeError or ValueError that names a tensor that is undefined, sparse
/// or of another dtype, before any tensor is read.
std::vector<TensorStatistics> statistics(const NamedTensors& tensors);
std::vector<TensorStatistics> statistics(const std::vector<at::Tensor>& tensors);

/// Statistics of a module's parameters, by name, and of the gradients of the parameters that have one. A tied parameter counts
/// once, under its first name.
std::vector<TensorStatistics> statistics(const torch::nn::Module& module);
std::vector<TensorStatistics> grad_statistics(const torch::nn::Module& module);

/// An output of an operator call in a module, or the gradient of such an output.
struct WatchedTensor {
  std::string module;           ///< path of the module whose parameter the operator used, such as "layer1.0.conv1"
  std::string op;               ///< "aten::conv2d", overload after a dot
  bool gradient = false;        ///< whether this is the gradient, which is multiplied by the loss scale
  TensorStatistics statistics;  ///< named "layer1.0.conv1 aten::conv2d"
};

/// Guard that records statistics of the outputs of each module's operators, and of the gradients of these outputs. Sees
/// operator calls of the calling thread, outside of backward passes, that use a parameter of the newest `initialize` (at any
/// level, O0 included). An operator without parameters, such as a ReLU, belongs to no module and is not recorded. Gradients are
/// recorded on any thread if the backward pass runs while the guard lives. Each record waits for the device and reads the
/// tensor once. Tensors that are not floating-point are not recorded. Guards may nest; the innermost guard records.
class watch {
 public:
  watch();
  ~watch();
  watch(const watch&) = delete;
  watch& operator=(const watch&) = delete;

  /// Ends the recording before the guard's lifetime ends.
  void stop();
  /// The records, in the order in which they were made. Do not call it while a backward pass runs on another thread.
  const std::vector<WatchedTensor>& records() const;

 private:
  class Recorder;
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace apex::amp
