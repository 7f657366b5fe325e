#include <apex_cpp/amp/masters/materialized_order.h>

#include <apex_cpp/amp/tensors/grad_kernels.h>

#include <algorithm>
#include <utility>

namespace apex::amp::detail {

void MaterializedOrder::enter() {
  for (TrainedParam* each : table_.with_masters()) each->param.mutable_grad().reset();
  for (TrainedParam* each : table_.native()) each->aside = std::exchange(each->param.mutable_grad(), at::Tensor());
}

bool MaterializedOrder::model_has_grads() const {
  const auto params = table_.all();
  return std::any_of(params.begin(), params.end(), [](const TrainedParam* each) { return has_nonzero(each->param.grad()); });
}

// Zeros stay gradients: an optimizer with momentum steps by them. Gradients that the program has put into masters stay.
void MaterializedOrder::follow_model() {
  bool any_dropped = false;
  for (TrainedParam* each : table_.with_masters()) {
    at::Tensor& master_grad = each->master.mutable_grad();
    const at::Tensor& grad = each->param.grad();
    const bool is_of_the_model = master_grad.defined() && each->taken.same_memory(master_grad);
    if (!is_of_the_model || !each->mark.was_dropped(grad)) continue;
    grad.defined() ? master_grad.zero_() : master_grad = at::Tensor();
    each->mark = GradMark(grad);
    any_dropped = true;
  }
  if (!any_dropped || model_has_grads()) return;
  for (TrainedParam* each : table_.with_masters()) {
    if (!each->mark.defined() && each->taken.same_memory(each->master.grad())) each->drop_master_grad();
  }
}

void MaterializedOrder::exit(LossScaler& scaler) {
  unscale_into_masters(scaler);
  unscale_native(scaler);
  mark_grads();
}

void MaterializedOrder::unscale_into_masters(LossScaler& scaler) {
  std::vector<at::Tensor> fresh, fresh_masters, again, again_masters;
  for (TrainedParam* each : table_.with_masters()) {
    const at::Tensor& grad = each->param.grad();
    if (!grad.defined()) continue;
    at::Tensor& master_grad = each->master.mutable_grad();
    const bool accumulates = master_grad.defined();
    if (!accumulates) master_grad = each->new_master_grad();
    (accumulates ? again : fresh).push_back(in_layout_of(grad, master_grad));
    (accumulates ? again_masters : fresh_masters).push_back(master_grad);
  }
  scaler.unscale(fresh, fresh_masters);
  scaler.unscale_with_stashed(again, again_masters, again_masters);
}

void MaterializedOrder::unscale_native(LossScaler& scaler) {
  PassGrads grads;
  for (TrainedParam* each : table_.native()) grads.add(each->param, std::exchange(each->aside, at::Tensor()));
  scaler.unscale(grads.fresh, grads.fresh);
  scaler.unscale_with_stashed(grads.again, grads.stashed, grads.again);
}

void MaterializedOrder::mark_grads() {
  for (TrainedParam* each : table_.with_masters()) {
    each->mark = GradMark(each->param.grad());
    each->taken = TensorTrace(each->master.grad());
  }
}

void MaterializedOrder::abandon() {
  for (TrainedParam* each : table_.with_masters()) {
    each->param.mutable_grad().reset();
    each->mark = {};
  }
  for (TrainedParam* each : table_.native()) each->param.mutable_grad() = std::exchange(each->aside, at::Tensor());
}

}  // namespace apex::amp::detail
