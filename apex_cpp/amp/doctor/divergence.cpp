#include <apex_cpp/amp/doctor/divergence.h>

#include <apex_cpp/amp/tensors/parameters.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

namespace apex::amp {
namespace {

using Kind = Divergence::Kind;

std::ostream& print_nonfinite(const Divergence& divergence, std::ostream& stream) {
  stream << divergence.count << " values are Inf or NaN";
  if (!divergence.backward || divergence.fixed_loss_scale <= 1) return stream;
  return stream << "; the loss scale is fixed at " << divergence.fixed_loss_scale << ": try a lower one, or \"dynamic\"";
}

std::ostream& print_weight(const Divergence& divergence, std::ostream& stream) {
  return stream << " (before step " << divergence.step << "): it has Inf or NaN, which an optimizer's step wrote. If the "
                << "optimizer's state is FP16, take a level with master weights, such as O2, or a larger eps";
}

}  // namespace

std::string Divergence::place() const {
  if (kind == Kind::none) return "none";
  return (kind == Kind::weight ? "optimizer " : backward ? "backward " : "forward ") + module + " " + op;
}

std::ostream& operator<<(std::ostream& stream, const Divergence& divergence) {
  stream << divergence.place();
  if (!divergence) return stream;
  if (divergence.kind == Kind::weight) return print_weight(divergence, stream);
  stream << " (step " << divergence.step << ", call " << divergence.call << "): ";
  if (divergence.kind == Kind::nonfinite) return print_nonfinite(divergence, stream);
  if (divergence.kind == Kind::underflow) stream << "most values became 0, ";
  return stream << "signal to noise " << divergence.sqnr << " dB";
}

}  // namespace apex::amp

namespace apex::amp::detail {

Agreement agreement(const at::Tensor& x, const at::Tensor& y) {
  Agreement result;
  result.sqnr = std::numeric_limits<double>::infinity();
  if (!x.defined() || !y.defined() || x.sizes() != y.sizes()) return result;
  const at::Tensor want = x.to(at::kCPU, at::kDouble).contiguous();
  const at::Tensor got = y.to(at::kCPU, at::kDouble).contiguous();
  const auto* wanted = want.const_data_ptr<double>();
  const auto* found = got.const_data_ptr<double>();
  double signal = 0, noise = 0;
  int64_t values = 0, became_zero = 0;
  for (int64_t i = 0; i < want.numel(); ++i) {
    const double value = wanted[i], error = value - found[i];
    if (!std::isfinite(value)) continue;
    if (!std::isfinite(found[i])) {
      ++result.nonfinite;
      continue;
    }
    signal += value * value;
    noise += error * error;
    values += value != 0;
    became_zero += value != 0 && found[i] == 0;
  }
  if (signal > 0 && noise > 0) result.sqnr = 10 * std::log10(signal / noise);
  if (values > 0) result.became_zero = static_cast<double>(became_zero) / static_cast<double>(values);
  return result;
}

namespace {

// Advances `i` and `j` to the nearest equal names; returns false if there are none.
bool resume(const std::vector<std::string>& a, const std::vector<std::string>& b, size_t& i, size_t& j) {
  const size_t longest = (a.size() - i) + (b.size() - j);
  for (size_t skipped_names = 0; skipped_names < longest; ++skipped_names) {
    for (size_t of_a = 0; of_a <= skipped_names; ++of_a) {
      const size_t of_b = skipped_names - of_a;
      if (i + of_a >= a.size() || j + of_b >= b.size() || a[i + of_a] != b[j + of_b]) continue;
      i += of_a;
      j += of_b;
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::pair<size_t, size_t>> align(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::pair<size_t, size_t>> pairs;
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size() && resume(a, b, i, j)) pairs.emplace_back(i++, j++);
  return pairs;
}

namespace {

using Kind = Divergence::Kind;

// A divergent call lowers the signal-to-noise ratio by at least this many dB. No single call causes noise that grows slowly
// over many calls.
constexpr double kMinDrop = 6;

/// The worst agreement of several tensors.
struct WorstAgreement {
  double sqnr = std::numeric_limits<double>::infinity();
  int64_t nonfinite = 0;
  double became_zero = 0;

  void add(const Agreement& agreement) {
    nonfinite += agreement.nonfinite;
    if (agreement.sqnr >= sqnr) return;
    sqnr = agreement.sqnr;
    became_zero = agreement.became_zero;
  }
  bool agrees(double threshold) const { return nonfinite == 0 && sqnr >= threshold; }
};

/// Inputs and outputs of one call, forward or backward, compared across the three runs.
struct CallAgreement {
  WorstAgreement inputs, outputs;
  size_t call = 0;  // index in the level's step
};

/// Compares tensors of the three runs. Ignores a tensor that differs between the reference and the control run.
class TensorComparison {
 public:
  explicit TensorComparison(double threshold) : threshold_(threshold) {}

  void add(WorstAgreement& worst, const at::Tensor& reference, const at::Tensor& control, const at::Tensor& level) const {
    const Agreement found = agreement(reference, level);
    if (found.nonfinite == 0 && found.sqnr >= threshold_ + kMinDrop) return worst.add(found);
    const Agreement alone = agreement(reference, control);
    if (alone.nonfinite == 0 && alone.sqnr >= threshold_ + kMinDrop) worst.add(found);
  }
  void add(WorstAgreement& worst, const std::vector<at::Tensor>& reference, const std::vector<at::Tensor>& control,
           const std::vector<at::Tensor>& level) const {
    const size_t count = std::min({reference.size(), control.size(), level.size()});
    for (size_t i = 0; i < count; ++i) add(worst, reference[i], control[i], level[i]);
  }
  using Grads = std::map<size_t, at::Tensor>;
  void add(WorstAgreement& worst, const Grads& reference, const Grads& control, const Grads& level) const {
    for (const auto& [number, grad] : reference) {
      const auto at_control = control.find(number), at_level = level.find(number);
      if (at_control != control.end() && at_level != level.end()) add(worst, grad, at_control->second, at_level->second);
    }
  }

 private:
  double threshold_;
};

// The first call whose outputs diverge and whose inputs agree. If there is none, the first call with any divergent tensor: a
// cast or a sum between two calls is the cause then.
const CallAgreement* find_divergent(const std::vector<CallAgreement>& calls, double threshold) {
  for (const auto& call : calls) {
    const bool takes_nonfinite = call.inputs.nonfinite > 0;
    if (call.outputs.nonfinite > 0 && !takes_nonfinite) return &call;
    if (!call.outputs.agrees(threshold) && call.inputs.agrees(threshold + kMinDrop)) return &call;
  }
  for (const auto& call : calls) {
    if (!call.outputs.agrees(threshold) || !call.inputs.agrees(threshold)) return &call;
  }
  return nullptr;
}

std::vector<std::string> step_names_of(const ObservedStep& step) {
  std::vector<std::string> names;
  for (const auto& call : step.calls) names.push_back(call.op);
  return names;
}

std::string common_path(const std::string& a, const std::string& b) {
  size_t end = 0;
  for (size_t i = 0; i <= std::min(a.size(), b.size()); ++i) {
    const bool ends_a = i == a.size() || a[i] == '.', ends_b = i == b.size() || b[i] == '.';
    if (ends_a && ends_b) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, end);
}

std::string module_or_model(const std::string& module) { return module.empty() ? "model" : module; }

Kind kind_of(const WorstAgreement& outputs) {
  if (outputs.nonfinite > 0) return Kind::nonfinite;
  return outputs.became_zero > 0.5 ? Kind::underflow : Kind::precision;
}

// The module of each call. A call without parameters gets the innermost module that encloses the modules of the calls before
// and after it.
std::vector<std::string> modules_of(const ObservedStep& step) {
  const size_t count = step.calls.size();
  std::vector<std::string> modules(count), next(count + 1);
  for (size_t i = count; i-- > 0;) next[i] = step.calls[i].module.empty() ? next[i + 1] : step.calls[i].module;
  std::string before;
  for (size_t i = 0; i < count; ++i) {
    const auto& own = step.calls[i].module;
    if (!own.empty()) before = own;
    modules[i] = own.empty() ? common_path(before, next[i]) : own;
  }
  return modules;
}

LocatedDivergence located_at(const CallAgreement& divergent_call, const ObservedStep& level, double threshold, bool backward) {
  const auto modules = modules_of(level);
  const size_t call = divergent_call.call;
  LocatedDivergence located;
  located.call = call;
  auto& divergence = located.divergence;
  // If only the inputs diverge, the inputs describe the divergence.
  const WorstAgreement& worst = divergent_call.outputs.agrees(threshold) ? divergent_call.inputs : divergent_call.outputs;
  divergence.kind = kind_of(worst);
  divergence.backward = backward;
  divergence.module = module_or_model(modules[call]);
  divergence.op = level.calls[call].op;
  divergence.sqnr = worst.sqnr;
  divergence.count = worst.nonfinite;
  for (size_t i = 0; i < call; ++i) divergence.call += level.calls[i].op == divergence.op && modules[i] == modules[call];
  return located;
}

/// The indices of one call in the three runs.
struct MatchedCall {
  size_t reference, control, level;
};

std::vector<MatchedCall> matched_calls(const ObservedStep& reference, const ObservedStep& control, const ObservedStep& level) {
  const auto names = step_names_of(reference);
  const auto with_control = align(names, step_names_of(control)), with_level = align(names, step_names_of(level));
  std::vector<MatchedCall> matched;
  auto other = with_control.begin();
  for (const auto& [in_reference, in_level] : with_level) {
    while (other != with_control.end() && other->first < in_reference) ++other;
    if (other != with_control.end() && other->first == in_reference) matched.push_back({in_reference, other->second, in_level});
  }
  return matched;
}

LocatedDivergence first_divergent_call(const ObservedStep& reference, const ObservedStep& control, const ObservedStep& level,
                                       const Thresholds& thresholds) {
  const auto matched = matched_calls(reference, control, level);
  const TensorComparison forward(thresholds.forward), backward(thresholds.backward);
  std::vector<CallAgreement> calls;
  for (const auto& in : matched) {
    const auto &a = reference.calls[in.reference], &b = control.calls[in.control], &c = level.calls[in.level];
    auto& compared = calls.emplace_back();
    compared.call = in.level;
    forward.add(compared.inputs, a.inputs, b.inputs, c.inputs);
    forward.add(compared.outputs, a.outputs, b.outputs, c.outputs);
  }
  if (const auto* call = find_divergent(calls, thresholds.forward)) return located_at(*call, level, thresholds.forward, false);
  calls.clear();
  for (auto in = matched.rbegin(); in != matched.rend(); ++in) {
    const auto &a = reference.calls[in->reference], &b = control.calls[in->control], &c = level.calls[in->level];
    auto& compared = calls.emplace_back();
    compared.call = in->level;
    backward.add(compared.inputs, a.output_grads, b.output_grads, c.output_grads);
    backward.add(compared.outputs, a.input_grads, b.input_grads, c.input_grads);
  }
  if (const auto* call = find_divergent(calls, thresholds.backward)) return located_at(*call, level, thresholds.backward, true);
  return {};
}

Divergence weight_divergence(const std::string& parameter) {
  Divergence divergence;
  divergence.kind = Kind::weight;
  divergence.module = module_or_model(module_path_of(parameter));
  divergence.op = parameter.substr(parameter.rfind('.') + 1);
  return divergence;
}

}  // namespace

// A weight with Inf or NaN is the cause of the divergences in the calls that use it.
LocatedDivergence first_divergence(const ObservedStep& reference, const ObservedStep& control, const ObservedStep& level,
                                   const Thresholds& thresholds) {
  auto located = first_divergent_call(reference, control, level, thresholds);
  const bool weight_diverged = reference.nonfinite_weight.empty() && !level.nonfinite_weight.empty();
  if (located.divergence && weight_diverged) located.divergence = weight_divergence(level.nonfinite_weight);
  return located;
}

}  // namespace apex::amp::detail
