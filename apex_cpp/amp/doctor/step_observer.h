#pragma once

#include <ATen/record_function.h>
#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <apex_cpp/amp/doctor/grad_taps.h>
#include <apex_cpp/amp/doctor/observed_step.h>

namespace apex::amp::detail {

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
