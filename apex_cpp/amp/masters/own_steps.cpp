#include <apex_cpp/amp/masters/own_steps.h>

#include <ATen/ops/equal.h>

#include <algorithm>

#include "kernels/capture.h"

namespace apex::amp::detail {
namespace {

// NaN is the same as NaN here.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.detach().view(at::kShort), b.detach().view(at::kShort));
}

}  // namespace

void OwnSteps::begin(MasterTable::Params with_masters) {
  weights_.clear();
  if (is_over_) return;
  for (const TrainedParam* each : with_masters) {
    if (kernels::is_captured(each->param.device())) return;
    weights_.push_back({each->param, each->master, each->param.detach().clone()});
  }
}

void OwnSteps::check(const Session& session) const {
  const auto is_lost = [](const Weight& weight) {
    return !same_bits(weight.param, weight.before) &&
           !same_bits(weight.param, weight.master.detach().to(weight.param.scalar_type()));
  };
  const auto lost = std::find_if(weights_.begin(), weights_.end(), is_lost);
  if (lost == weights_.end()) return;
  for (const Weight& weight : weights_) weight.param.detach().copy_(weight.before);
  TORCH_CHECK(
      false, "step() of an optimizer class of the program's own wrote into the model's weight ", session.name_of(lost->param),
      ", which amp then overwrites with its FP32 master: nothing would be trained. Step what param_groups() holds within "
      "step(): the masters. An optimizer or a list of parameters that the class keeps has the model's weights instead; "
      "derive from that optimizer's class in place of holding it.");
}

void OwnSteps::end() {
  const auto moved = [](const Weight& weight) { return !same_bits(weight.param, weight.before); };
  is_over_ = is_over_ || std::any_of(weights_.begin(), weights_.end(), moved);
  weights_.clear();
}

}  // namespace apex::amp::detail
