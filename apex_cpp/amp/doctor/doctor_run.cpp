#include <apex_cpp/amp/doctor/doctor_run.h>

#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/amp_session.h>

#include <ATen/TensorOperators.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace apex::amp {
namespace detail {
namespace {

// A run fails after this many skipped steps in a row: a dynamic loss scale has fallen from 2^16 to 2^-4 by then.
constexpr int64_t kMaxSkippedInARow = 20;

}  // namespace

bool RunRecord::has_failed() const {
  if (!losses.empty() && !std::isfinite(losses.back())) return true;
  const auto last = std::find(skipped.rbegin(), skipped.rend(), false);
  return last - skipped.rbegin() >= kMaxSkippedInARow;
}

std::string RunRecord::failure_reason() const {
  if (std::isfinite(losses.back())) return std::to_string(kMaxSkippedInARow) + " steps in a row overflowed";
  return std::isnan(losses.back()) ? "the loss is nan" : "the loss is infinite";
}

namespace {

void perturb_all_weights(c10::ScalarType dtype) {
  const auto perturb = [&](const at::Tensor& tensor, const std::string&) {
    if (!tensor.is_floating_point()) return;
    const at::Tensor data = tensor.data();
    data.add_(data.to(dtype).to(data.scalar_type()) - data, kRoundingErrors);
  };
  if (const auto names = newest_parameter_names()) names->for_each(perturb);
}

// Name of the alphabetically first parameter with Inf or NaN; empty if there is none.
std::string nonfinite_weight() {
  std::string first;
  const auto find_nonfinite = [&](const at::Tensor& tensor, const std::string& name) {
    if (tensor.is_floating_point() && (first.empty() || name < first) && has_nonfinite(tensor.data())) first = name;
  };
  if (const auto names = newest_parameter_names()) names->for_each(find_nonfinite);
  return first;
}

}  // namespace
}  // namespace detail

DoctorRun::DoctorRun(std::shared_ptr<detail::RunRecord> record) : record_(std::move(record)) {}
DoctorRun::~DoctorRun() = default;

int64_t DoctorRun::step() const { return record_->step; }

bool DoctorRun::next() {
  if (record_->step >= 0) end();
  if (record_->step + 1 >= record_->steps || record_->has_failed()) return false;
  ++record_->step;
  begin();
  return true;
}

void DoctorRun::begin() {
  auto& session = detail::require_session("Doctor");
  record_->losses.push_back(0);
  record_->has_loss = false;
  record_->overflows = session.overflows();
  if (record_->step == 0) {
    for (auto& scaler : session.scalers) scaler.set_skip_warning(0);
    if (record_->perturb_weights) detail::perturb_all_weights(*record_->perturb_weights);
  }
  if (record_->step != record_->observed_step) return;
  // Before the first step, Inf and NaN come from the level's cast of the initial weights, and not from an optimizer.
  if (record_->step > 0) record_->observed.nonfinite_weight = detail::nonfinite_weight();
  record_->observer = std::make_shared<detail::StepObserver>();
  record_->observer->start();
}

void DoctorRun::loss(const at::Tensor& loss) {
  TORCH_CHECK_VALUE(loss.numel() == 1, "DoctorRun::loss was given a tensor of ", loss.numel(),
                    " elements. Give the step's loss, one number.");
  const at::DisableRecordFunctionGuard own_calls;
  this->loss(loss.detach().item<double>());
}

void DoctorRun::loss(double loss) {
  TORCH_CHECK(record_->step >= 0, "DoctorRun::loss was called before next(). Write while (run.next()) { … run.loss(loss); }.");
  record_->losses.back() += loss;
  record_->has_loss = true;
}

void DoctorRun::end() {
  // Without losses, all levels would seem to reach the same loss.
  TORCH_CHECK(record_->has_loss, "Doctor: step ", record_->step,
              " ended without its loss. Write run.loss(loss) in every step.");
  auto& session = detail::require_session("Doctor");
  record_->skipped.push_back(session.overflows() > record_->overflows);
  if (!record_->observer) return;
  record_->observed.calls = record_->observer->take();
  record_->observed.loss_scale = session.first_loss_scale();
  if (session.cast_rules) record_->observed.float8_operators = session.cast_rules->float8_operators();
  record_->observed.bfloat16_modules = session.settings.bfloat16_modules.value_or(std::vector<std::string>());
  record_->observer.reset();
}

}  // namespace apex::amp
