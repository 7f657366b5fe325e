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

/// What a 16-bit type does to small values: how many of the finite values that are not 0 become 0, how many become subnormal
/// and lose digits; and their shares of all finite values that are not 0 (0 where there are none).
struct Underflow {
  int64_t zero = 0;
  int64_t subnormal = 0;
  double zero_share = 0;
  double subnormal_share = 0;
};

/// What one tensor holds. Counts are exact. `abs_max`, `mean` and `norm` (L2) are of the finite values, 0 where there are none;
/// they are summed in float64.
struct TensorStatistics {
  std::string name;
  int64_t numel = 0;
  double abs_max = 0;
  double mean = 0;
  double norm = 0;
  int64_t zeros = 0;
  int64_t inf = 0;
  int64_t nan = 0;
  /// How many finite values x != 0 have 2^exponent <= |x| < 2^(exponent + 1), for each exponent that occurs. Values that are
  /// subnormal in the tensor's own dtype count by their true exponents.
  std::map<int, int64_t> exponents;

  /// What happens to the values where they are multiplied by `scale` and rounded, once, to the nearest float16 or bfloat16
  /// (ties to even, subnormal results kept). Exact for a scale that is a power of two, as those of dynamic loss scaling are;
  /// another one counts as the next smaller power of two, with which no less underflows. Errors: ValueError for a scale that is
  /// not finite and above 0, or another dtype.
  Underflow underflow(double scale, c10::ScalarType dtype) const;

  /// Of each exponent's values: those at the power of two itself; those from where on bfloat16, or float16, rounds to the next
  /// power of two, each without the next (`underflow` needs them).
  struct Edges {
    int64_t at_power = 0;
    int64_t near_next_bfloat16 = 0;
    int64_t near_next_float16 = 0;
  };
  std::map<int, Edges> edges;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// One record a tensor, in order, in one pass over memory. Dtypes float16, bfloat16, float32, float64; any shape, number of
/// elements and layout (a tensor whose elements do not fill a piece of memory is copied first). Devices: the CPU, and CUDA in
/// builds with CUDA; tensors of other devices are copied to the CPU first. Waits for the device. The same bits at any number of
/// threads. Names: those given; else the parameter's name in the models of the newest `initialize`, else "tensor 3", counted
/// from 0. Errors: TypeError or ValueError naming a tensor that is undefined, sparse, or of another dtype, before anything is
/// read.
std::vector<TensorStatistics> statistics(const NamedTensors& tensors);
std::vector<TensorStatistics> statistics(const std::vector<at::Tensor>& tensors);

/// Of the parameters of a module, by their names; and of the gradients of those that have one. A tied parameter counts once, by
/// its first name.
std::vector<TensorStatistics> statistics(const torch::nn::Module& module);
std::vector<TensorStatistics> grad_statistics(const torch::nn::Module& module);

/// What one operator call of a module made, or the gradient that came back to it.
struct WatchedTensor {
  std::string module;           ///< path of the module whose parameter the operator used, such as "layer1.0.conv1"
  std::string op;               ///< "aten::conv2d"; an overload follows a dot
  bool gradient = false;        ///< of what the call made; as the backward pass has it, multiplied by the loss scale
  TensorStatistics statistics;  ///< named "layer1.0.conv1 aten::conv2d"
};

/// Records statistics per module while it lives: of what its operators make, and of the gradients of that. Sees operator calls
/// of the calling thread that use a parameter of the newest `initialize` (at any level, O0 too), outside of backward passes;
/// one that has no parameter, such as a ReLU, belongs to no module. Gradients are recorded in whatever thread the backward pass
/// runs, if it runs while the guard lives. Each record waits for the device and reads the tensor once. Tensors that are not
/// floating-point have none. Guards may nest; the innermost records.
class watch {
 public:
  watch();
  ~watch();
  watch(const watch&) = delete;
  watch& operator=(const watch&) = delete;

  /// Ends the recording before the guard does.
  void stop();
  /// In the order in which they came about. Not while a backward pass runs in another thread.
  const std::vector<WatchedTensor>& records() const;

 private:
  class Recorder;
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace apex::amp
