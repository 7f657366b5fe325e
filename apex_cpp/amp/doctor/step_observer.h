#pragma once

#include <apex_cpp/amp/doctor/grad_taps.h>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/edge.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace apex::amp::detail {

/// One operator call, or one call of an autograd function, that a step's forward pass made, with what came back to it in the
/// backward pass. Tensors are copies of the floating-point ones, in the dtype in which they were seen.
struct ObservedCall {
  std::string op;                      ///< "aten::conv2d", an overload follows a dot; the class of an autograd function
  std::string module;                  ///< path of the module whose parameter it used; empty if it used none
  bool can_be_kept = false;            ///< an operator whose result is its own: neither a view nor written in place
  std::vector<std::string> inner_ops;  ///< of an autograd function: the operators that its forward called
  int64_t order = 0;                   ///< among the step's calls
  std::vector<at::Tensor> inputs, outputs;
  std::map<size_t, at::Tensor> output_grads;  ///< gradients that came in, by the number of the output
  std::map<size_t, at::Tensor> input_grads;   ///< this call's share of the gradients that went on, by the number of the input
};

/// What one training step did, in order. Casts, views and calls without floating-point results are left out: two levels then
/// make the same calls.
struct ObservedStep {
  std::vector<ObservedCall> calls;
  std::string nonfinite_weight;  ///< a parameter that had Inf or NaN before a step other than the first; empty for none
  double loss_scale = 1;
};

/// Records the calls of the calling thread's forward passes from `start` to `stop`, and the gradients that come back to them in
/// whatever thread that happens. Modules are those of the newest `initialize`. Copies every floating-point tensor once.
class StepObserver : public GradSink, public std::enable_shared_from_this<StepObserver> {
 public:
  ~StepObserver() override { stop(); }
  void start();
  /// Ends the recording; what hooks still see afterwards is dropped.
  void stop();
  std::vector<ObservedCall> take();

  void add_output_grad(size_t call, size_t output, const at::Tensor& grad) override;
  void add_input_grad(size_t call, size_t input, const at::Tensor& grad) override;

 private:
  struct Pending;
  struct Copy {
    at::Tensor original;  // keeps the address from being used again
    uint32_t version = 0;
    at::Tensor copy;
  };

  using NodePtr = decltype(torch::autograd::Edge::function);  // another pointer in LibTorch 2.11 than in later ones

  static StepObserver*& current();
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function);
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context);

  void begin(const at::RecordFunction& function, Pending& pending);
  void end(const at::RecordFunction& function, Pending& pending);
  void end_inside_function(const at::RecordFunction& function, const Pending& pending);
  void find_function(const at::Tensor& tensor);
  /// Even numbers for what is recorded where it happens; autograd functions, which show later, come between.
  int64_t order_of_next() const { return 2 * static_cast<int64_t>(calls_.size()); }
  void remember(const NodePtr& node);
  at::Tensor copy_of(const at::Tensor& tensor);

  std::mutex mutex_;
  bool stopped_ = true;
  at::CallbackHandle callback_ = 0;
  StepObserver* outer_ = nullptr;
  int depth_ = 0;
  std::vector<ObservedCall> calls_;
  std::unordered_map<const at::TensorImpl*, Copy> copies_;
  std::unordered_set<const torch::autograd::Node*> known_;  // those that have a call already
  std::vector<NodePtr> alive_;                              // keeps their addresses from being used again

  // What ran with grad mode off since an operator ran with it on: the inside of an autograd function, if it is one.
  struct Inside {
    std::vector<std::string> ops;
    std::string module;
    int64_t order = 0;
  };
  Inside inside_;
  bool inside_goes_on_ = false;
  std::unordered_map<const at::TensorImpl*, Inside> insides_;  // by what it made
};

}  // namespace apex::amp::detail
