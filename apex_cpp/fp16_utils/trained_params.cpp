#include <apex_cpp/fp16_utils/trained_params.h>

#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/tensors/low_precision.h>

#include <ostream>

namespace apex::fp16_utils::detail {
namespace {

using amp::detail::is_low_precision;

// A parameter by its place in an optimizer.
struct Place {
  const at::Tensor& param;
  size_t group, position;
};

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << "parameter " << place.position << " of group " << place.group << ", of shape " << place.param.sizes();
}

void check_can_adopt(const Place& place) {
  const at::Tensor& param = place.param;
  const bool is_16bit = is_low_precision(param.scalar_type());
  TORCH_CHECK_TYPE(is_16bit || param.scalar_type() == at::kFloat, "FP16_Optimizer: ", place, ", has dtype ",
                   param.scalar_type(),
                   "; expected float16, bfloat16 or float32. Convert it, or leave it to an optimizer of its own.");
  TORCH_CHECK_VALUE(!is_16bit || param.is_non_overlapping_and_dense(), "FP16_Optimizer: ", place, " and strides ",
                    param.strides(),
                    ", has gaps or repeats in memory, and its master could not be copied back. Make it contiguous().");
}

}  // namespace

template <class Groups, class F>
void TrainedParams::for_each_new(Groups& groups, const F& f) const {
  for (size_t group = 0; group < groups.size(); ++group) {
    auto& params = groups[group].params();
    for (size_t i = 0; i < params.size(); ++i) {
      if (is_new(params[i])) f(params[i], Place{params[i], group, i});
    }
  }
}

void TrainedParams::adopt_new(torch::optim::Optimizer& optimizer) {
  auto& groups = optimizer.param_groups();
  for_each_new(groups, [](const at::Tensor&, const Place& place) { check_can_adopt(place); });
  list_once(groups);
  const size_t before = by_tensor_.size();
  for_each_new(groups, [&](at::Tensor& param, const Place&) { adopt(optimizer, param); });
  if (by_tensor_.size() == before) return;
  sort_by(groups);
  amp::detail::match_state_to_params(optimizer, /*has_masters=*/true);
}

void TrainedParams::check_no_new_grads(const torch::optim::Optimizer& optimizer) const {
  for_each_new(optimizer.param_groups(), [](const at::Tensor& param, const Place& place) {
    TORCH_CHECK(!param.grad().defined(), "FP16_Optimizer::step: ", place,
                ", was added or unfrozen after the backward pass, and its gradient may carry the loss scale. Add and unfreeze "
                "parameters before backward(), or call zero_grad() and backward() again.");
  });
}

const TrainedParam* TrainedParams::find(const at::Tensor& tensor) const {
  const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
  return found == by_tensor_.end() ? nullptr : &found->second;
}

// A parameter that is here already may be added again, as itself: its master takes the place.
void TrainedParams::list_once(ParamGroups& groups) {
  if (!listed_once_.is_due(groups)) return;
  ParamGroups listed;
  for (const auto& group : groups) {
    Tensors& params = listed.emplace_back(group.params()).params();
    for (at::Tensor& param : params) {
      if (const TrainedParam* here = find(param)) param = here->stepped;
    }
  }
  listed_once_.see_to(listed);
  for (size_t i = 0; i < groups.size(); ++i) groups[i].params() = listed[i].params();
}

void TrainedParams::adopt(torch::optim::Optimizer& optimizer, at::Tensor& param) {
  TrainedParam taken{param, param};
  if (is_low_precision(param.scalar_type())) {
    taken.stepped = param.detach().clone().to(at::kFloat).requires_grad_();
    amp::detail::rekey_param_state(optimizer, param, taken.stepped);
  }
  param = taken.stepped;
  by_tensor_[taken.param.unsafeGetTensorImpl()] = by_tensor_[taken.stepped.unsafeGetTensorImpl()] = taken;
}

void TrainedParams::sort_by(const ParamGroups& groups) {
  for (Tensors* list : {&model_params_, &masters_, &native_}) list->clear();
  for (const at::Tensor& tensor : amp::detail::params_of(groups)) {
    const TrainedParam* here = find(tensor);
    if (!here) continue;
    (here->has_master() ? masters_ : native_).push_back(here->stepped);
    if (here->has_master()) model_params_.push_back(here->param);
  }
}

}  // namespace apex::fp16_utils::detail
