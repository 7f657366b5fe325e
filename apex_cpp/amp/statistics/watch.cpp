#include <apex_cpp/amp/statistics/watch.h>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <utility>

#include <apex_cpp/amp/tensors/low_precision.h>
#include <apex_cpp/amp/tensors/op_tensors.h>
#include <apex_cpp/amp/tensors/unlink.h>

namespace apex::amp {
namespace {

bool can_be_watched(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_meta() && detail::is_real_float(tensor.scalar_type());
}

// A weight itself, or a view of one such as its transpose: nothing that a module made.
bool is_weight(const at::Tensor& tensor) {
  const auto names = detail::newest_parameter_names();
  return names && !detail::module_of(tensor, *names).empty();
}

// The module whose parameter an operator was called with.
std::string module_called(const at::RecordFunction& function) {
  const auto names = detail::newest_parameter_names();
  std::string module;
  if (!names) return module;
  for (const auto& input : function.inputs()) {
    detail::for_each_tensor(input, [&](const at::Tensor& tensor) {
      if (module.empty()) module = detail::module_of(tensor, *names);
    });
  }
  return module;
}

}  // namespace

// Hooks on tensors hold it weakly: they outlive the guard, and do nothing then.
class watch::Recorder : public std::enable_shared_from_this<Recorder> {
 public:
  void start() {
    outer_ = std::exchange(current(), this);
    callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Recorder::on_start, &Recorder::on_end)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}));
  }

  void stop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    at::removeCallback(callback_);
    detail::unlink(current(), this, &Recorder::outer_);
  }

  std::vector<WatchedTensor> records;

 private:
  // A callback's two halves are paired by this, whichever recorder is current.
  struct Context : at::ObserverContext {
    Recorder* recorder = nullptr;
    std::string module;
  };

  static Recorder*& current() {
    static thread_local Recorder* recorder = nullptr;
    return recorder;
  }

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
    auto context = std::make_unique<Context>();
    if (!function.operator_name() || !current()) return context;
    context->recorder = current();
    const bool outermost = context->recorder->depth_++ == 0;
    if (outermost && torch::autograd::get_current_graph_task_id() == -1) context->module = module_called(function);
    return context;
  }

  static void on_end(const at::RecordFunction& function, at::ObserverContext* observed) {
    auto& context = *static_cast<Context*>(observed);
    if (!context.recorder) return;
    --context.recorder->depth_;
    if (context.module.empty()) return;
    const at::DisableRecordFunctionGuard own_calls;
    for (const auto& output : function.outputs()) {
      detail::for_each_tensor(output, [&](const at::Tensor& tensor) {
        if (can_be_watched(tensor) && !is_weight(tensor))
          context.recorder->see(context.module, detail::name_of_call(function), tensor);
      });
    }
  }

  void see(const std::string& module, const std::string& op, const at::Tensor& tensor) {
    add(module, op, false, tensor);
    if (!tensor.requires_grad()) return;
    tensor.register_hook([weak = weak_from_this(), module, op](const at::Tensor& grad) {
      const auto recorder = weak.lock();
      if (recorder && grad.defined() && can_be_watched(grad)) recorder->add(module, op, true, grad);
    });
  }

  void add(const std::string& module, const std::string& op, bool gradient, const at::Tensor& tensor) {
    const at::DisableRecordFunctionGuard own_calls;
    auto record = statistics(NamedTensors{{module + " " + op, tensor}}).front();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!stopped_) records.push_back({module, op, gradient, std::move(record)});
  }

  Recorder* outer_ = nullptr;
  at::CallbackHandle callback_ = 0;
  int depth_ = 0;
  std::mutex mutex_;
  bool stopped_ = false;
};

watch::watch() : recorder_(std::make_shared<Recorder>()) { recorder_->start(); }
watch::~watch() { recorder_->stop(); }
void watch::stop() { recorder_->stop(); }
const std::vector<WatchedTensor>& watch::records() const { return recorder_->records; }

}  // namespace apex::amp
