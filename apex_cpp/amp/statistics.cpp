#include <apex_cpp/amp/statistics.h>

#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/map_tensors.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/amp/tensors/tensor_version.h>
#include <apex_cpp/torch_compat/autograd.h>
#include <apex_cpp/torch_compat/private_members.h>
#include "kernels/statistics/statistics.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <mutex>
#include <utility>

namespace apex::amp {
namespace {

void check_tensor(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "statistics: '", name,
                    "' is undefined. Leave it out; a parameter has no gradient before the first backward pass.");
  TORCH_CHECK_TYPE(detail::is_real_float(tensor.scalar_type()), "statistics: '", name, "' has dtype ", tensor.scalar_type(),
                   ". Convert it to float16, bfloat16, float32 or float64.");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "statistics: '", name, "' has layout ", tensor.layout(),
                    ". Pass its values, or tensor.to_dense().");
}

TensorStatistics record_of(std::string name, int64_t numel, const kernels::TensorStatistics& found) {
  TensorStatistics record;
  record.name = std::move(name);
  record.numel = numel;
  record.abs_max = found.abs_max;
  const int64_t finite = numel - found.inf - found.nan;
  record.mean = finite > 0 ? found.sum / static_cast<double>(finite) : 0;
  record.norm = std::sqrt(found.sum_of_squares);
  record.zeros = found.zeros, record.inf = found.inf, record.nan = found.nan;
  for (const auto& [exponent, parts] : found.exponents) {
    record.exponents[exponent] = parts[0] + parts[1] + parts[2] + parts[3];
    record.edges[exponent] = {parts[0], parts[2], parts[3]};
  }
  return record;
}

// The exponents of a type's smallest normal and smallest subnormal value.
struct ExponentRange {
  int normal, subnormal;
};

ExponentRange exponent_range(c10::ScalarType dtype) {
  TORCH_CHECK_VALUE(detail::is_low_precision(dtype), "underflow: dtype is ", dtype, ". Use float16 or bfloat16.");
  return dtype == at::kHalf ? ExponentRange{-14, -24} : ExponentRange{-126, -133};
}

// Applies `pick` to each parameter once, and returns the results by name without the undefined ones.
template <class Pick>
NamedTensors tensors_of(const torch::nn::Module& module, const Pick& pick) {
  NamedTensors tensors;
  detail::FirstSeen is_new;
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    if (!tensor.defined() || !is_new(tensor)) continue;
    if (at::Tensor picked = pick(tensor); picked.defined()) tensors.emplace_back(parameter.key(), std::move(picked));
  }
  return tensors;
}

}  // namespace

Underflow TensorStatistics::underflow(double scale, c10::ScalarType dtype) const {
  TORCH_CHECK_VALUE(std::isfinite(scale) && scale > 0, "underflow: scale is ", scale, ". It must be finite and above 0.");
  const ExponentRange range = exponent_range(dtype);
  const int shift = std::ilogb(scale);
  Underflow underflow;
  int64_t values = 0;
  for (const auto& [exponent, count] : exponents) {
    const Edges& edge = edges.at(exponent);
    const int scaled = exponent + shift;
    values += count;
    // Half of the smallest subnormal value is a tie, which rounds to 0. Larger values round up.
    const int64_t zero = scaled < range.subnormal - 1 ? count : scaled == range.subnormal - 1 ? edge.at_power : 0;
    // Values just below the smallest normal value that round up to it are not lost.
    const int64_t rounds_up = edge.near_next_float16 + (dtype == at::kBFloat16 ? edge.near_next_bfloat16 : 0);
    const int64_t small = scaled < range.normal - 1 ? count : scaled == range.normal - 1 ? count - rounds_up : 0;
    underflow.zero += zero;
    underflow.subnormal += small - zero;
  }
  const auto share = [values](int64_t count) {
    return values > 0 ? static_cast<double>(count) / static_cast<double>(values) : 0;
  };
  underflow.zero_share = share(underflow.zero);
  underflow.subnormal_share = share(underflow.subnormal);
  return underflow;
}

std::vector<TensorStatistics> statistics(const NamedTensors& tensors) {
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    check_tensor(name, tensor);
    values.push_back(tensor);
  }
  const auto found = kernels::tensor_statistics(values);
  std::vector<TensorStatistics> records;
  for (size_t i = 0; i < tensors.size(); ++i) {
    records.push_back(record_of(tensors[i].first, tensors[i].second.numel(), found[i]));
  }
  return records;
}

std::vector<TensorStatistics> statistics(const std::vector<at::Tensor>& tensors) {
  const auto names = detail::newest_parameter_names();
  NamedTensors named;
  for (const at::Tensor& tensor : tensors) {
    const std::string* const name = names && tensor.defined() ? names->find(tensor) : nullptr;
    named.emplace_back(name ? *name : "tensor " + std::to_string(named.size()), tensor);
  }
  return statistics(named);
}

std::vector<TensorStatistics> statistics(const torch::nn::Module& module) {
  return statistics(tensors_of(module, [](const at::Tensor& parameter) { return parameter; }));
}

std::vector<TensorStatistics> grad_statistics(const torch::nn::Module& module) {
  return statistics(tensors_of(module, [](const at::Tensor& parameter) { return parameter.grad(); }));
}

namespace {

bool can_be_watched(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_meta() && detail::is_real_float(tensor.scalar_type());
}

// True for a weight, or a view of one such as its transpose: no module computed it.
bool is_weight(const at::Tensor& tensor) {
  const auto names = detail::newest_parameter_names();
  return names && detail::name_of_parameter(tensor, *names);
}

// Path of the module whose parameter the operator was called with, "model" for the model itself; empty if there is none.
std::string module_called(const at::RecordFunction& function) {
  const auto names = detail::newest_parameter_names();
  std::string module;
  if (!names) return module;
  for (const auto& input : torch_compat::inputs_of(function)) {
    detail::for_each_tensor(input, [&](const at::Tensor& tensor) {
      const std::string* const name = module.empty() ? detail::name_of_parameter(tensor, *names) : nullptr;
      if (!name) return;
      module = detail::module_path_of(*name);
      if (module.empty()) module = "model";
    });
  }
  return module;
}

}  // namespace

// Hooks on tensors hold the recorder weakly. Hooks that outlive the guard do nothing.
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
  // Links the end of a call to the recorder that saw its start, even if another recorder is current by then.
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
    Recorder* const recorder = current();
    const bool outermost = recorder->depth_ == 0;
    if (outermost && torch_compat::graph_task() == torch_compat::kNoGraphTask) context->module = module_called(function);
    ++recorder->depth_;  // after all that may find no memory: the end of such a call is not reported
    context->recorder = recorder;
    return context;
  }

  static void on_end(const at::RecordFunction& function, at::ObserverContext* observed) {
    if (!observed) return;  // LibTorch reported an error of on_start, such as no memory
    auto& context = *static_cast<Context*>(observed);
    if (!context.recorder) return;
    --context.recorder->depth_;
    if (context.module.empty()) return;
    const at::DisableRecordFunctionGuard no_recording;
    for (const auto& output : function.outputs()) {
      detail::for_each_tensor(output, [&](const at::Tensor& tensor) {
        if (can_be_watched(tensor) && !is_weight(tensor))
          context.recorder->record_output(context.module, torch_compat::name_of_call(function), tensor);
      });
    }
  }

  void record_output(const std::string& module, const std::string& op, const at::Tensor& tensor) {
    add(module, op, false, tensor);
    if (!tensor.requires_grad()) return;
    tensor.register_hook([weak = weak_from_this(), module, op](const at::Tensor& grad) {
      const auto recorder = weak.lock();
      if (recorder && grad.defined() && can_be_watched(grad)) recorder->add(module, op, true, grad);
    });
  }

  void add(const std::string& module, const std::string& op, bool gradient, const at::Tensor& tensor) {
    const at::DisableRecordFunctionGuard no_recording;
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
