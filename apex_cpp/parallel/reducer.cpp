#include <apex_cpp/parallel/reducer.h>

#include <apex_cpp/parallel/ddp/module_state.h>
#include <apex_cpp/parallel/processes/flat_dist_call.h>

namespace apex::parallel {

Reducer::Reducer(const torch::nn::Module& module, const ProcessGroup& group) : group_(or_default(group)) {
  const auto state = detail::ModuleState(module);
  state.check_same_on_all_ranks(group_, "The model given to Reducer");
  params_ = detail::tensors_of(state.params);
  flat_dist_call(params_, broadcast_from(0, group_, "broadcasting the parameters of Reducer's model"));
}

Reducer::Reducer(std::vector<at::Tensor> grads, const ProcessGroup& group)
    : group_(or_default(group)), grads_(std::move(grads)) {}

void Reducer::reduce() {
  std::vector<at::Tensor> grads = grads_;
  for (const at::Tensor& param : params_) {
    if (param.grad().defined()) grads.push_back(param.grad());
  }
  flat_dist_call(grads, all_reduce_mean(group_, "all-reducing the gradients of Reducer"));
}

}  // namespace apex::parallel
