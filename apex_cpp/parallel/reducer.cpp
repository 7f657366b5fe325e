#include <apex_cpp/parallel/reducer.h>

#include <apex_cpp/parallel/ddp/module_state.h>
#include <apex_cpp/parallel/processes/collectives.h>

#include <utility>

namespace apex::parallel {

Reducer::Reducer(const torch::nn::Module& module, const ProcessGroup& group) : group_(or_default(group)) {
  const auto state = detail::ModuleState(module);
  state.check_same_on_all_ranks(group_, "The model given to Reducer");
  state.check_same_amp_on_all_ranks(group_);
  params_ = detail::tensors_of(state.params);
  flat_dist_call(params_, broadcast_from(0, group_, "broadcasting the parameters of Reducer's model"));
  state.share_masters(group_);
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

OverflowSharing::OverflowSharing(ProcessGroup group)
    : exchange_(amp::detail::begin_overflow_exchange([group = std::move(group)](bool found_here) {
        return detail::ranks_where(group, found_here, "sharing overflows of scale_loss");
      })) {}

OverflowSharing::OverflowSharing(OverflowSharing&& other) noexcept = default;

OverflowSharing::~OverflowSharing() { amp::detail::end_overflow_exchange(exchange_); }

}  // namespace apex::parallel
