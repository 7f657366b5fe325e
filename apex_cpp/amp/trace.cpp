#include <apex_cpp/amp/trace.h>

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/map_tensors.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/amp/tensors/tensor_version.h>
#include <apex_cpp/files/csv.h>
#include <apex_cpp/torch_compat/autograd.h>
#include <apex_cpp/torch_compat/private_members.h>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <tuple>

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
  // Pairs the start and the end of a callback, whichever recorder is current.
  struct Context : at::ObserverContext {
    explicit Context(Recorder* owner) : recorder(owner) {}
    Recorder* recorder;
  };

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
    // Callbacks also run for nodes of the backward pass; only the operators that they call are recorded.
    auto* recorder = function.operator_name() ? dynamic_cast<Recorder*>(thread_recorder()) : nullptr;
    auto context = std::make_unique<Context>(recorder);
    if (recorder) recorder->start(function);
    return context;
  }
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (!context) return;  // LibTorch reported an error of on_start, such as no memory
    if (auto* recorder = static_cast<Context*>(context)->recorder) recorder->end(function);
  }

  void start(const at::RecordFunction& function) {
    if (depth_ == 0) add_op(function);
    ++depth_;  // after all that may find no memory: the end of such a call is not reported
  }

  void add_op(const at::RecordFunction& function) {
    TracedOp op;
    op.name = torch_compat::name_of_call(function);
    op.backward = torch_compat::graph_task() != torch_compat::kNoGraphTask;
    const auto names = detail::newest_parameter_names();
    for (const auto& input : torch_compat::inputs_of(function)) {
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

namespace apex::amp::detail {
namespace {

template <class Items, class Text>
std::string joined(const Items& items, const char* separator, Text&& text) {
  std::string result;
  for (const auto& item : items) result += (result.empty() ? "" : separator) + text(item);
  return result;
}

std::string dtypes(const std::vector<c10::ScalarType>& types) {
  return joined(types, " ", [](c10::ScalarType type) { return std::string(c10::toString(type)); });
}

std::string cast_text(const TracedOp::Cast& cast) {
  return std::string(c10::toString(cast.from)) + "->" + c10::toString(cast.to) + (cast.cached ? "(cached)" : "");
}

using Row = std::array<std::string, 8>;

Row row_of(const TracedOp& op) {
  return {op.name,
          op.module,
          op.backward ? "backward" : "forward",
          dtypes(op.inputs),
          dtypes(op.outputs),
          joined(op.casts, " ", cast_text),
          op.in_float32 ? "float32" : "",
          std::to_string(op.cache_hits())};
}

std::vector<Row> rows_of(const std::vector<TracedOp>& ops) {
  std::vector<Row> rows{{"op", "module", "pass", "inputs", "outputs", "casts", "computed_in", "cache_hits"}};
  for (const auto& op : ops) rows.push_back(row_of(op));
  return rows;
}

// Escapes: names of operators and parameters may come from the user.
std::string json_string(const std::string& text) {
  std::ostringstream json;
  json << '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json << '\\' << c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json << "\\u" << std::hex << std::setw(4) << std::setfill('0') << static_cast<int>(c) << std::dec;
    } else {
      json << c;
    }
  }
  json << '"';
  return json.str();
}

std::string dtype_list(const std::vector<c10::ScalarType>& types) {
  return "[" + joined(types, ", ", [](c10::ScalarType type) { return json_string(c10::toString(type)); }) + "]";
}

std::string json_of(const TracedOp::Cast& cast) {
  return "{\"from\": " + json_string(c10::toString(cast.from)) + ", \"to\": " + json_string(c10::toString(cast.to)) +
         ", \"cached\": " + (cast.cached ? "true" : "false") + "}";
}

std::string json_of(const TracedOp& op) {
  return "{\"name\": " + json_string(op.name) + ", \"module\": " + json_string(op.module) +
         ", \"backward\": " + (op.backward ? "true" : "false") + ", \"inputs\": " + dtype_list(op.inputs) +
         ", \"outputs\": " + dtype_list(op.outputs) + ", \"casts\": [" +
         joined(op.casts, ", ", [](const TracedOp::Cast& cast) { return json_of(cast); }) +
         "], \"in_float32\": " + (op.in_float32 ? "true" : "false") + "}";
}

}  // namespace

std::string trace_table(const std::vector<TracedOp>& ops) {
  const auto rows = rows_of(ops);
  std::array<size_t, std::tuple_size_v<Row>> widths{};
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::ostringstream table;
  for (const auto& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) table << std::left << std::setw(static_cast<int>(widths[i] + 2)) << row[i];
    table << row.back() << "\n";
  }
  return table.str();
}

std::string trace_json(const std::vector<TracedOp>& ops) {
  return "{\"ops\": [\n" + joined(ops, ",\n", [](const TracedOp& op) { return json_of(op); }) + "\n]}\n";
}

std::string trace_csv(const std::vector<TracedOp>& ops) {
  std::string text;
  for (const auto& row : rows_of(ops)) {
    text += std::apply([](const auto&... fields) { return csv_row(fields...); }, row);
  }
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  TORCH_CHECK(file, "amp cannot write '", path, "': ", std::strerror(errno), ".");
}

}  // namespace apex::amp::detail
