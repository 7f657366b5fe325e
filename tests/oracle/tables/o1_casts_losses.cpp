// The losses of torch::nn::functional.
#include <ATen/Functions.h>
#include <apex_cpp/amp/functional.h>
#include <torch/nn/functional/loss.h>

#include "tests/oracle/tables/o1_casts_calls.h"

namespace oracle {
namespace {

namespace F = torch::nn::functional;
namespace amp = apex::amp;
using at::Tensor;
using Tensors = CastCall::Tensors;

const CastInput kSigns{{6}, true};

Tensor classes() { return at::arange(3, at::kLong); }

Tensor ctc_loss(Tensors& x) {
  const Tensor targets = at::arange(1, 4, at::kLong).expand({2, 3}).contiguous();
  return F::ctc_loss(x[0], targets, at::full({2}, 6, at::kLong), at::full({2}, 3, at::kLong));
}

void add_classification(CastCalls& calls) {
  calls["torch.nn.functional.binary_cross_entropy"] = {{kMatrix, kMatrix},
                                                       [](Tensors& x) { return F::binary_cross_entropy(x[0], x[1]); }};
  calls["torch.nn.functional.binary_cross_entropy_with_logits"] = {
      {kMatrix, kMatrix}, [](Tensors& x) { return F::binary_cross_entropy_with_logits(x[0], x[1]); }};
  calls["torch.nn.functional.cross_entropy"] = {{kMatrix}, [](Tensors& x) { return F::cross_entropy(x[0], classes()); }};
  calls["torch.nn.functional.ctc_loss"] = {{{{6, 2, 5}}}, ctc_loss};
  calls["torch.nn.functional.multi_margin_loss"] = {{kMatrix},
                                                    [](Tensors& x) { return F::multi_margin_loss(x[0], classes()); }};
  calls["torch.nn.functional.multilabel_margin_loss"] = {{kMatrix}, [](Tensors& x) {
                                                           const Tensor labels = at::arange(4, at::kLong).expand({3, 4}) - 1;
                                                           return F::multilabel_margin_loss(x[0], labels.abs().contiguous());
                                                         }};
  calls["torch.nn.functional.multilabel_soft_margin_loss"] = {
      {kMatrix, kMatrix}, [](Tensors& x) { return amp::functional::multilabel_soft_margin_loss(x[0], x[1]); }};
  calls["torch.nn.functional.nll_loss"] = {{kMatrix}, [](Tensors& x) { return F::nll_loss(x[0], classes()); }};
}

void add_regression(CastCalls& calls) {
  calls["torch.nn.functional.huber_loss"] = {{kMatrix, kMatrix}, [](Tensors& x) { return F::huber_loss(x[0], x[1]); }};
  calls["torch.nn.functional.kl_div"] = {
      {kMatrix, kMatrix}, [](Tensors& x) { return F::kl_div(x[0], x[1], F::KLDivFuncOptions(torch::kBatchMean)); }};
  calls["torch.nn.functional.l1_loss"] = {{kMatrix, kMatrix}, [](Tensors& x) { return F::l1_loss(x[0], x[1]); }};
  calls["torch.nn.functional.mse_loss"] = {{kMatrix, kMatrix}, [](Tensors& x) { return F::mse_loss(x[0], x[1]); }};
  calls["torch.nn.functional.poisson_nll_loss"] = {{kMatrix, kMatrix},
                                                   [](Tensors& x) { return F::poisson_nll_loss(x[0], x[1]); }};
  calls["torch.nn.functional.smooth_l1_loss"] = {{kMatrix, kMatrix}, [](Tensors& x) { return F::smooth_l1_loss(x[0], x[1]); }};
}

void add_embedding_losses(CastCalls& calls) {
  calls["torch.nn.functional.cosine_embedding_loss"] = {
      {{{6, 4}}, {{6, 4}}, kSigns}, [](Tensors& x) { return F::cosine_embedding_loss(x[0], x[1], x[2].detach()); }};
  calls["torch.nn.functional.hinge_embedding_loss"] = {{kVector, kSigns},
                                                       [](Tensors& x) { return F::hinge_embedding_loss(x[0], x[1].detach()); }};
  calls["torch.nn.functional.margin_ranking_loss"] = {
      {kVector, kVector, kSigns}, [](Tensors& x) { return F::margin_ranking_loss(x[0], x[1], x[2].detach()); }};
  calls["torch.nn.functional.soft_margin_loss"] = {{kVector, kSigns},
                                                   [](Tensors& x) { return F::soft_margin_loss(x[0], x[1].detach()); }};
  calls["torch.nn.functional.triplet_margin_loss"] = {{kMatrix, kMatrix, kMatrix},
                                                      [](Tensors& x) { return F::triplet_margin_loss(x[0], x[1], x[2]); }};
}

}  // namespace

void add_loss_calls(CastCalls& calls) {
  add_classification(calls);
  add_regression(calls);
  add_embedding_losses(calls);
}

}  // namespace oracle
