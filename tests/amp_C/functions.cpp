#include "functions.h"

namespace amp_C_test {
namespace {

at::Tensor ones_for(const TensorLists& lists) {
  return at::ones({static_cast<int64_t>(lists[0].size())}, lists[0][0].device());
}

void sgd(const at::Tensor& noop, const TensorLists& lists) {
  multi_tensor_sgd_cuda(kChunk, noop, lists, 0, 0.5f, 0, 0.5f, false, false, false, 1);
}

void lars(const at::Tensor& noop, const TensorLists& lists) {
  multi_tensor_lars_cuda(kChunk, noop, lists, ones_for(lists), ones_for(lists), 0.5f, 0.5f, 0.25f, 0.25f, 0.5f, 0, false, true,
                         false, 1, false);
}

void lamb_mp(const at::Tensor& noop, const TensorLists& lists) {
  const auto one = [&] { return scalar(1, noop.device()); };
  multi_tensor_lamb_mp_cuda(kChunk, noop, lists, scalar(0.5, noop.device()), 0.5f, 0.5f, 1, int_scalar(1, noop.device()), 1,
                            0.5f, 1, 1, one(), one(), false, scalar(0, noop.device()), one());
}

}  // namespace

const std::vector<Function>& functions() {
  static const std::vector<Function> kFunctions = {
      {"scale", 2, {0}, false, [](at::Tensor f, TensorLists l) { multi_tensor_scale_cuda(kChunk, f, l, 2); }},
      {"axpby_both", 3, {0, 1}, false, [](at::Tensor f, TensorLists l) { multi_tensor_axpby_cuda(kChunk, f, l, 2, 3, -1); }},
      {"axpby_x", 3, {0}, false, [](at::Tensor f, TensorLists l) { multi_tensor_axpby_cuda(kChunk, f, l, 2, 3, 0); }},
      {"axpby_y", 3, {1}, false, [](at::Tensor f, TensorLists l) { multi_tensor_axpby_cuda(kChunk, f, l, 2, 3, 1); }},
      {"l2norm", 1, {0}, false, [](at::Tensor f, TensorLists l) { return multi_tensor_l2norm_cuda(kChunk, f, l, true); }},
      {"l2norm_mp", 1, {0}, false, [](at::Tensor f, TensorLists l) { return multi_tensor_l2norm_mp_cuda(kChunk, f, l, true); }},
      {"l2norm_scale",
       2,
       {0},
       false,
       [](at::Tensor f, TensorLists l) { return multi_tensor_l2norm_scale_cuda(kChunk, f, l, 2, true); }},
      {"unscale_l2norm",
       1,
       {0},
       false,
       [](at::Tensor f, TensorLists l) { return multi_tensor_unscale_l2norm_cuda(kChunk, f, l, scalar(2, f.device()), true); }},
      {"sgd", 3, {}, true, sgd},
      {"sgd_model_params", 4, {}, true, sgd},
      {"adam",
       4,
       {},
       false,
       [](at::Tensor f, TensorLists l) { multi_tensor_adam_cuda(kChunk, f, l, 0.5f, 0.5f, 0.5f, 1, 1, 1, 1, 0); }},
      {"adam_capturable",
       4,
       {},
       true,
       [](at::Tensor f, TensorLists l) {
         multi_tensor_adam_capturable_cuda(kChunk, f, l, scalar(0.5, f.device()), 0.5f, 0.5f, 1, int_scalar(1, f.device()), 1,
                                           1, 0, scalar(0.5, f.device()));
       }},
      {"adam_capturable_master",
       5,
       {},
       true,
       [](at::Tensor f, TensorLists l) {
         multi_tensor_adam_capturable_master_cuda(kChunk, f, l, scalar(0.5, f.device()), 0.5f, 0.5f, 1,
                                                  int_scalar(1, f.device()), 1, 1, 0, scalar(0.5, f.device()));
       }},
      {"adagrad", 3, {}, false, [](at::Tensor f, TensorLists l) { multi_tensor_adagrad_cuda(kChunk, f, l, 0.5f, 1, 0, 0); }},
      {"lars", 3, {}, true, lars},
      {"lars_model_params", 4, {}, true, lars},
      {"novograd_l2",
       3,
       {0},
       false,
       [](at::Tensor f, TensorLists l) {
         multi_tensor_novograd_cuda(kChunk, f, l, ones_for(l), 0.5f, 0.5f, 0.5f, 1, 1, 1, 0, 1, 1, 2);
       }},
      {"novograd_inf",
       3,
       {0},
       false,
       [](at::Tensor f, TensorLists l) {
         multi_tensor_novograd_cuda(kChunk, f, l, ones_for(l), 0.5f, 0.5f, 0.5f, 1, 1, 1, 0, 1, 1, 0);
       }},
      {"lamb",
       4,
       {0, 1},
       false,
       [](at::Tensor f, TensorLists l) {
         multi_tensor_lamb_cuda(kChunk, f, l, 0.5f, 0.5f, 0.5f, 1, 1, 1, 0.5f, 1, 1, scalar(1, f.device()), 1, false);
       }},
      {"lamb_mp", 4, {0, 1}, true, lamb_mp},
      {"lamb_mp_model_params", 5, {0, 1}, true, lamb_mp},
      {"lamb_stage1",
       5,
       {},
       false,
       [](at::Tensor f, TensorLists l) {
         multi_tensor_lamb_stage1_cuda(kChunk, f, l, ones_for(l), 0, 0.5f, 0.5f, 1, scalar(1, f.device()), 1);
       }},
      {"lamb_stage2",
       2,
       {},
       false,
       [](at::Tensor f, TensorLists l) {
         multi_tensor_lamb_stage2_cuda(kChunk, f, l, ones_for(l), ones_for(l), 0.5f, 0.5f, false);
       }},
  };
  return kFunctions;
}

}  // namespace amp_C_test
