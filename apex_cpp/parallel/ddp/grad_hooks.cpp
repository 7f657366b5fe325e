#include <apex_cpp/parallel/ddp/grad_hooks.h>

#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace apex::parallel::detail {
namespace {

using torch::autograd::variable_list;

class CallsBack final : public torch::autograd::FunctionPostHook {
 public:
  CallsBack(GradHooks::Call call, size_t index) : call_(std::move(call)), index_(index) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    call_(index_);
    return outputs;
  }

 private:
  GradHooks::Call call_;
  size_t index_;
};

}  // namespace

void GradHooks::add(const at::Tensor& param, size_t index, const Call& call) {
  auto accumulator = torch::autograd::impl::grad_accumulator(param);
  const uintptr_t key = accumulator->add_post_hook(std::make_unique<CallsBack>(call, index));
  hooks_.emplace(index, Hook{std::move(accumulator), key});
}

bool GradHooks::hears(const at::Tensor& param, size_t index) const {
  return torch::autograd::impl::try_get_grad_accumulator(param) == hooks_.at(index).accumulator;
}

GradHooks::~GradHooks() {
  for (const auto& [index, hook] : hooks_) hook.accumulator->del_post_hook(hook.key);
}

}  // namespace apex::parallel::detail
