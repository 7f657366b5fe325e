#pragma once
// IWYU pragma: private, include <apex_cpp/amp/doctor.h>

#include <apex_cpp/amp/doctor/grad_taps.h>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/edge.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace apex::amp::detail {

/// One forward call of an operator or an autograd function, with its gradients from the backward pass. Tensors are copies of
/// the floating-point tensors, in their own dtype.
struct ObservedCall {
  std::string op;                   ///< "aten::conv2d", overload after a dot; or the class of an autograd function
  std::string module;               ///< path of the module whose parameter the call used; empty if it used none
  std::string root_parameter;       ///< name of the model's own parameter that it used, a weight before a bias; empty if none
  bool returns_new_tensor = false;  ///< an operator that returns a new tensor: no view, and not in place
  std::vector<std::string> inner_ops;  ///< the operators that the forward of an autograd function called
  int64_t order = 0;                   ///< sorts the step's calls
  std::vector<at::Tensor> inputs, outputs;
  std::map<size_t, at::Tensor> output_grads;  ///< gradients of the outputs, by index of the output
  std::map<size_t, at::Tensor> input_grads;   ///< this call's share of the gradients of its inputs, by index of the input
};

/// The calls of one training step, in order. Casts, views and calls without floating-point results are left out, so that two
/// levels make the same calls.
struct ObservedStep {
  std::vector<ObservedCall> calls;
  std::string nonfinite_weight;  ///< parameter with Inf or NaN before the step; empty if there is none, and for the first step
  double loss_scale = 1;
  std::set<std::string> float8_operators;     ///< the session's: operators that a level with FP8 rounds
  std::vector<std::string> bfloat16_modules;  ///< the session's: modules that a level with FP8 leaves in bfloat16
};

/// Records the forward calls of the calling thread between `start` and `stop`, and the gradients of these calls on any thread.
/// Modules are those of the newest `initialize`. Copies each floating-point tensor once.
class StepObserver : public GradSink, public std::enable_shared_from_this<StepObserver> {
 public:
  ~StepObserver() override { stop(); }
  void start();
  /// Ends the recording. Gradients that arrive later are ignored.
  void stop();
  std::vector<ObservedCall> take();

  void add_output_grad(size_t call, size_t output, const at::Tensor& grad) override;
  void add_input_grad(size_t call, size_t input, const at::Tensor& grad) override;

 private:
  struct Pending;
  struct Copy {
    at::Tensor original;  // keeps its address from being used again
    uint32_t version = 0;
    at::Tensor copy;
  };

  /// The pointer type differs between LibTorch 2.11 and later versions.
  using NodePtr = decltype(torch::autograd::Edge::function);

  static StepObserver*& current();
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function);
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context);

  void begin(const at::RecordFunction& function, Pending& pending);
  void end(const at::RecordFunction& function, Pending& pending);
  void end_inside_function(const at::RecordFunction& function, const Pending& pending);
  void find_function(const at::Tensor& tensor);
  /// Operators are recorded when they run and get even numbers. Autograd functions are found later and get the odd numbers
  /// between.
  int64_t next_order() const { return 2 * static_cast<int64_t>(calls_.size()); }
  void remember(const NodePtr& node);
  at::Tensor copy_of(const at::Tensor& tensor);

  std::mutex mutex_;
  bool stopped_ = true;
  at::CallbackHandle callback_ = 0;
  StepObserver* outer_ = nullptr;
  int depth_ = 0;
  std::vector<ObservedCall> calls_;
  std::unordered_map<const at::TensorImpl*, Copy> copies_;
  std::unordered_set<const torch::autograd::Node*> nodes_with_call_;
  std::vector<NodePtr> kept_alive_;  // keeps the addresses in nodes_with_call_ from being used again

  // The operators that ran with grad mode off after the last operator with grad mode on. They may be the forward of an autograd
  // function.
  struct FunctionBody {
    std::vector<std::string> ops;
    std::string module;
    int64_t order = 0;
  };
  FunctionBody body_;
  bool body_is_open_ = false;
  std::unordered_map<const at::TensorImpl*, FunctionBody> bodies_;  // by output tensor
};

}  // namespace apex::amp::detail
