#include <apex_cpp/amp/casts/trace/trace.h>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/casts/trace/trace_format.h>
#include <apex_cpp/amp/casts/trace_recorder.h>
#include <apex_cpp/amp/tensors/op_tensors.h>
#include <apex_cpp/amp/tensors/unlink.h>

namespace apex::amp {

class trace::Recorder : public detail::TraceRecorder {
 public:
  Recorder() {
    outer = std::exchange(thread_recorder(), this);
    callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Recorder::on_start, &Recorder::on_end)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}));
  }
  ~Recorder() override { stop(); }

  void stop() {
    if (stopped_) return;
    stopped_ = true;
    at::removeCallback(callback_);
    detail::unlink<TraceRecorder>(thread_recorder(), this, &TraceRecorder::outer);
    if (auto* around = dynamic_cast<Recorder*>(outer)) around->ops.insert(around->ops.end(), ops.begin(), ops.end());
  }

  void add_cast(c10::ScalarType from, c10::ScalarType to, bool cached) override {
    if (depth_ > 0) ops.back().casts.push_back({from, to, cached});
  }

  void add_float32() override {
    if (depth_ > 0) ops.back().in_float32 = true;
  }

  std::vector<TracedOp> ops;

 private:
  // A callback's two halves are paired by this, whichever recorder is current.
  struct Context : at::ObserverContext {
    explicit Context(Recorder* owner) : recorder(owner) {}
    Recorder* recorder;
  };

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
    // Nodes of the backward pass are announced, too; the operators that they call are what counts.
    auto* recorder = function.operator_name() ? dynamic_cast<Recorder*>(thread_recorder()) : nullptr;
    if (recorder) recorder->start(function);
    return std::make_unique<Context>(recorder);
  }
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (auto* recorder = static_cast<Context*>(context)->recorder) recorder->end(function);
  }

  void start(const at::RecordFunction& function) {
    if (depth_++ > 0) return;
    TracedOp op;
    op.name = detail::name_of_call(function);
    op.backward = torch::autograd::get_current_graph_task_id() != -1;
    const auto names = detail::newest_parameter_names();
    for (const auto& input : function.inputs()) {
      detail::for_each_tensor(input, [&](const at::Tensor& tensor) {
        op.inputs.push_back(tensor.scalar_type());
        if (op.module.empty() && names) op.module = detail::module_of(tensor, *names);
      });
    }
    ops.push_back(std::move(op));
  }

  void end(const at::RecordFunction& function) {
    if (--depth_ > 0) return;
    for (const auto& output : function.outputs()) {
      detail::for_each_tensor(output, [&](const at::Tensor& tensor) { ops.back().outputs.push_back(tensor.scalar_type()); });
    }
  }

  static detail::TraceRecorder*& thread_recorder() { return detail::thread_casts().recorder; }

  at::CallbackHandle callback_ = 0;
  int depth_ = 0;
  bool stopped_ = false;
};

int64_t TracedOp::cache_hits() const {
  return std::count_if(casts.begin(), casts.end(), [](const Cast& cast) { return cast.cached; });
}

trace::trace() : recorder_(std::make_unique<Recorder>()) {}
trace::~trace() = default;
void trace::stop() { recorder_->stop(); }
const std::vector<TracedOp>& trace::ops() const { return recorder_->ops; }
std::string trace::table() const { return detail::trace_table(ops()); }
std::string trace::json() const { return detail::trace_json(ops()); }
std::string trace::csv() const { return detail::trace_csv(ops()); }
void trace::write_json(const std::string& path) const { detail::write_text(path, json()); }
void trace::write_csv(const std::string& path) const { detail::write_text(path, csv()); }

std::ostream& operator<<(std::ostream& stream, const trace& trace) { return stream << trace.table(); }

}  // namespace apex::amp
