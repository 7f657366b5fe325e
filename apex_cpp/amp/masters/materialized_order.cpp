#include <apex_cpp/amp/masters/materialized_order.h>

#include <apex_cpp/amp/tensors/grad_kernels.h>

#include <utility>

namespace apex::amp::detail {

void MaterializedOrder::enter() {
  drop_zeroed_masters();
  for (TrainedParam* each : table_.with_masters()) each->param.mutable_grad().reset();
  for (TrainedParam* each : table_.native()) each->aside = std::exchange(each->param.mutable_grad(), at::Tensor());
}

void MaterializedOrder::drop_zeroed_masters() {
  for (TrainedParam* each : table_.with_masters()) {
    if (!each->mark.defined() || !each->master.grad().defined()) continue;
    const at::Tensor& grad = each->param.grad();
    const bool dropped = !grad.defined();
    const bool zeroed = !dropped && !each->mark.still(grad) && !grad.any().item<bool>();
    if (dropped || zeroed) each->master.mutable_grad().reset();
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
  for (TrainedParam* each : table_.with_masters()) each->mark = GradMark(each->param.grad());
}

void MaterializedOrder::abandon() {
  for (TrainedParam* each : table_.with_masters()) {
    each->param.mutable_grad().reset();
    each->mark = {};
  }
  for (TrainedParam* each : table_.native()) each->param.mutable_grad() = std::exchange(each->aside, at::Tensor());
}

}  // namespace apex::amp::detail
