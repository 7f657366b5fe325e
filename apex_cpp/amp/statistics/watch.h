#pragma once

#include <memory>
#include <string>
#include <vector>

#include <apex_cpp/amp/statistics/statistics.h>

namespace apex::amp {

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
