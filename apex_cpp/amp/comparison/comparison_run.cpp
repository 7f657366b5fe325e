#include <apex_cpp/amp/comparison/comparison_run.h>

#include <apex_cpp/amp/comparison/measurement.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/trace.h>
#include <apex_cpp/files/csv.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

namespace apex::amp {
namespace {

namespace fs = std::filesystem;

// The first steps are not timed: buffers are allocated, kernels are chosen and the loss scale settles. Memory and operators are
// recorded in these steps.
constexpr int64_t kWarmupSteps = 5;
// Index of the step whose operators are recorded. The first step calls more operators than later ones.
constexpr int64_t kTracedStep = 1;

std::string dtype_text(const at::Tensor& tensor) { return tensor.defined() ? c10::toString(tensor.scalar_type()) : ""; }

}  // namespace

struct ComparisonRun::Record {
  using Clock = std::chrono::steady_clock;
  struct Step {
    double loss = 0, loss_scale = 1, milliseconds = 0;
    bool has_loss = false, skipped = false;
  };

  Record(int64_t wanted, bool times_alone) : steps(wanted), only_times(times_alone) {
    if (!only_times) counting.emplace(memory);
  }

  void begin_step() {
    const auto& session = detail::require_session("ComparisonRun");
    if (done.empty()) find_gpu(*session.parameter_names);
    auto& step = done.emplace_back();
    step.loss_scale = session.first_loss_scale();
    overflows = session.overflows();
    const auto number = static_cast<int64_t>(done.size()) - 1;
    if (!only_times) observe_step(number);
    synchronize();
    began = Clock::now();
  }

  void observe_step(int64_t number) {
    if (number == kTracedStep) trace.emplace();
    if (number >= kWarmupSteps) return;
    held = memory->live();
    memory->take_peak();  // discards the peak of earlier steps
  }

  void end_step() {
    synchronize();
    auto& step = done.back();
    step.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
    TORCH_CHECK(step.has_loss, "ComparisonRun: step ", done.size() - 1,
                " ended without its loss. Write run.loss(loss) in every step.");
    step.skipped = detail::require_session("ComparisonRun").overflows() > overflows;
    if (only_times) return;
    if (trace) operators = trace->csv();
    trace.reset();
    if (static_cast<int64_t>(done.size()) <= kWarmupSteps) peak = memory->take_peak();
    if (static_cast<int64_t>(done.size()) == kWarmupSteps) memory->stop();
  }

  void find_gpu(const detail::ParameterNames& names) {
    names.for_each([this](const at::Tensor& tensor, const std::string&) {
      if (tensor.is_cuda()) gpu = tensor.device();
    });
  }

  void synchronize() const {
    if (gpu) c10::impl::VirtualGuardImpl(gpu->type()).synchronizeDevice(gpu->index());
  }

  // Sorted by name, because the table of tensors has no order.
  void record_parameters() {
    const auto& session = detail::require_session("ComparisonRun");
    std::map<std::string, std::string> rows;
    session.parameter_names->for_each([&](const at::Tensor& tensor, const std::string& name) {
      if (!tensor.is_leaf() || !tensor.requires_grad()) return;
      const auto master = session.master_values_of(tensor);
      rows[name] = csv_row(name, tensor.numel(), dtype_text(tensor), dtype_text(tensor.grad()), dtype_text(master));
    });
    parameters = "parameter,numel,dtype,grad_dtype,master_dtype\n";
    for (const auto& [name, row] : rows) parameters += row;
  }

  std::string steps_table() const {
    std::string rows = "step,loss,loss_scale,skipped,step_ms\n";
    for (size_t i = 0; i < done.size(); ++i) {
      const auto& step = done[i];
      rows += csv_row(i + 1, step.loss, step.loss_scale, step.skipped, step.milliseconds);
    }
    return rows;
  }

  int64_t steps;
  bool only_times;
  std::vector<Step> done;
  std::optional<double> accuracy, loss;
  Clock::time_point began;
  std::optional<at::Device> gpu;
  std::shared_ptr<detail::TensorMemory> memory = std::make_shared<detail::TensorMemory>();
  std::optional<detail::Counting> counting;
  std::optional<amp::trace> trace;
  int64_t overflows = 0;       // before the newest step
  int64_t held = 0, peak = 0;  // bytes between two steps, and peak within a step
  std::string operators, parameters;
  bool is_complete = false;  // the last step has ended
};

ComparisonRun::ComparisonRun(int64_t steps) : ComparisonRun(steps, /*only_times=*/false) {}
ComparisonRun::ComparisonRun(int64_t steps, bool only_times) : record_(std::make_unique<Record>(steps, only_times)) {
  TORCH_CHECK_VALUE(steps >= 1, "ComparisonRun: steps=", steps, " is not allowed. Give 1 or more.");
}
ComparisonRun::~ComparisonRun() = default;

int64_t ComparisonRun::step() const { return static_cast<int64_t>(record_->done.size()) - 1; }
bool ComparisonRun::has_ended() const { return record_->is_complete; }
bool ComparisonRun::only_times() const { return record_->only_times; }

bool ComparisonRun::next() {
  auto& record = *record_;
  if (record.is_complete) return false;
  if (!record.done.empty()) record.end_step();
  if (static_cast<int64_t>(record.done.size()) < record.steps) {
    record.begin_step();
    return true;
  }
  record.is_complete = true;
  if (!record.only_times) record.record_parameters();
  return false;
}

void ComparisonRun::loss(const at::Tensor& loss) {
  TORCH_CHECK_VALUE(loss.numel() == 1, "ComparisonRun::loss was given a tensor of ", loss.numel(),
                    " elements. Give the step's loss, one number.");
  this->loss(loss.detach().item<double>());
}

void ComparisonRun::loss(double loss) {
  TORCH_CHECK(!record_->done.empty(),
              "ComparisonRun::loss was called before next(). Write while (run.next()) { … run.loss(loss); }.");
  record_->done.back().loss += loss;
  record_->done.back().has_loss = true;
}

void ComparisonRun::test_accuracy(double share) {
  TORCH_CHECK_VALUE(share >= 0 && share <= 1, "ComparisonRun::test_accuracy was given ", share,
                    ". Give the fraction of correct predictions, from 0 to 1.");
  record_->accuracy = share;
}

void ComparisonRun::test_loss(double loss) { record_->loss = loss; }

double ComparisonRun::median_step() const {
  std::vector<double> times;
  const auto& done = record_->done;
  const auto warmup_steps = std::min<size_t>(kWarmupSteps, done.size() / 2);
  for (size_t i = warmup_steps; i < done.size(); ++i) times.push_back(done[i].milliseconds);
  return detail::median_interval(std::move(times)).median;
}

void ComparisonRun::write(const std::string& folder) const {
  const auto& record = *record_;
  TORCH_CHECK(record.is_complete,
              "ComparisonRun::write was called before the run ended. Call it after next() has returned false.");
  std::error_code error;
  fs::create_directories(folder, error);  // if it fails, write_text throws
  detail::write_text(folder + "/steps.csv", record.steps_table());
  detail::write_text(
      folder + "/result.csv",
      "test_accuracy,test_loss,device\n" + csv_row(record.accuracy ? csv_field(*record.accuracy) : "",
                                                   record.loss ? csv_field(*record.loss) : "", record.gpu ? "cuda" : "cpu"));
  detail::write_text(folder + "/memory.csv", "held,peak\n" + csv_row(record.held, record.peak));
  detail::write_text(folder + "/parameters.csv", record.parameters);
  detail::write_text(folder + "/trace.csv", record.operators);
}

}  // namespace apex::amp
