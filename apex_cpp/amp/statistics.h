#pragma once

#include <apex_cpp/amp/statistics/tensor_statistics.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace apex::amp {

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
  std::string module;     ///< path of the module whose parameter the operator used: "layer1.0.conv1"; "model" for the root
  std::string op;         ///< "aten::conv2d", overload after a dot
  bool gradient = false;  ///< whether this is the gradient, which is multiplied by the loss scale
  TensorStatistics statistics;  ///< named "layer1.0.conv1 aten::conv2d"
};

/// Guard that records statistics of the outputs of each module's operators, and of the gradients of these outputs. Sees
/// operator calls of the calling thread, outside of backward passes, that use a parameter of the newest `initialize` (at any
/// level, O0 included). An operator without parameters, such as a ReLU, belongs to no module and is not recorded. Gradients are
/// recorded on any thread if the backward pass runs while the guard lives, except within `apex::checkpoint`. Each record waits
/// for the device and reads the tensor once. Tensors that are not floating-point are not recorded. Guards may nest; the
/// innermost guard records.
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
