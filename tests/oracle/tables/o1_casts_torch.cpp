// Functions that the table lists only in `torch`: convolutions, sequences, and functions that amp does not cast.
#include <ATen/Functions.h>

#include "tests/oracle/tables/o1_casts_calls.h"

namespace oracle {
namespace {

using Tensors = CastCall::Tensors;

void add_torch_convolutions(CastCalls& calls) {
  calls["torch.conv1d"] = {{{{2, 3, 8}}, {{4, 3, 3}}, {{4}}}, [](Tensors& x) { return at::conv1d(x[0], x[1], x[2]); }};
  calls["torch.conv2d"] = {{{{2, 3, 6, 6}}, {{4, 3, 3, 3}}, {{4}}}, [](Tensors& x) { return at::conv2d(x[0], x[1], x[2]); }};
  calls["torch.conv3d"] = {{{{2, 2, 4, 4, 4}}, {{3, 2, 2, 2, 2}}, {{3}}},
                           [](Tensors& x) { return at::conv3d(x[0], x[1], x[2]); }};
  calls["torch.conv_tbc"] = {{{{8, 2, 3}}, {{3, 3, 4}}, {{4}}}, [](Tensors& x) { return at::conv_tbc(x[0], x[1], x[2]); }};
  calls["torch.conv_transpose1d"] = {{{{2, 3, 8}}, {{3, 4, 3}}, {{4}}},
                                     [](Tensors& x) { return at::conv_transpose1d(x[0], x[1], x[2]); }};
  calls["torch.conv_transpose2d"] = {{{{2, 3, 5, 5}}, {{3, 4, 3, 3}}, {{4}}},
                                     [](Tensors& x) { return at::conv_transpose2d(x[0], x[1], x[2]); }};
  calls["torch.conv_transpose3d"] = {{{{2, 2, 3, 3, 3}}, {{2, 3, 2, 2, 2}}, {{3}}},
                                     [](Tensors& x) { return at::conv_transpose3d(x[0], x[1], x[2]); }};
}

void add_sequences(CastCalls& calls) {
  const std::vector<CastInput> two{kMatrix, kMatrix};
  calls["torch.cat"] = {two, [](Tensors& x) { return at::cat({x[0], x[1]}); }};
  calls["torch.concat"] = {two, [](Tensors& x) { return at::concat({x[0], x[1]}); }};
  calls["torch.stack"] = {two, [](Tensors& x) { return at::stack({x[0], x[1]}); }};
  calls["torch.hstack"] = {two, [](Tensors& x) { return at::hstack({x[0], x[1]}); }};
}

void add_unlisted_products(CastCalls& calls) {
  calls["torch.chain_matmul"] = {{{{3, 4}}, {{4, 5}}, {{5, 2}}}, [](Tensors& x) {
                                   return at::chain_matmul({x[0], x[1], x[2]});
                                 }};
  calls["torch.einsum"] = {{{{3, 4}}, {{4, 5}}}, [](Tensors& x) { return at::einsum("ij,jk->ik", {x[0], x[1]}); }};
  calls["torch.ger"] = {{{{3}}, {{4}}}, [](Tensors& x) { return at::ger(x[0], x[1]); }};
  calls["torch.inner"] = {{{{3, 4}}, {{5, 4}}}, [](Tensors& x) { return at::inner(x[0], x[1]); }};
  calls["torch.outer"] = {{{{3}}, {{4}}}, [](Tensors& x) { return at::outer(x[0], x[1]); }};
  calls["torch.tensordot"] = {{{{3, 4}}, {{4, 5}}}, [](Tensors& x) { return at::tensordot(x[0], x[1], {1}, {0}); }};
  calls["torch.vdot"] = {{kVector, kVector}, [](Tensors& x) { return at::vdot(x[0], x[1]); }};
}

void add_unlisted_functions(CastCalls& calls) {
  const std::vector<CastInput> one{kMatrix}, two{kMatrix, kMatrix};
  calls["torch.clamp"] = {one, [](Tensors& x) { return at::clamp(x[0], 0.2, 0.7); }};
  calls["torch.lerp"] = {two, [](Tensors& x) { return at::lerp(x[0], x[1], 0.3); }};
  calls["torch.log1p"] = {one, [](Tensors& x) { return at::log1p(x[0]); }};
  calls["torch.log_softmax"] = {one, [](Tensors& x) { return at::log_softmax(x[0], 1); }};
  calls["torch.logaddexp"] = {two, [](Tensors& x) { return at::logaddexp(x[0], x[1]); }};
  calls["torch.logsumexp"] = {one, [](Tensors& x) { return at::logsumexp(x[0], 1); }};
  calls["torch.maximum"] = {two, [](Tensors& x) { return at::maximum(x[0], x[1]); }};
  calls["torch.mean"] = {one, [](Tensors& x) { return at::mean(x[0]); }};
  calls["torch.sin"] = {one, [](Tensors& x) { return at::sin(x[0]); }};
  calls["torch.softmax"] = {one, [](Tensors& x) { return at::softmax(x[0], 1); }};
  calls["torch.sqrt"] = {one, [](Tensors& x) { return at::sqrt(x[0]); }};
  calls["torch.sub"] = {two, [](Tensors& x) { return at::sub(x[0], x[1]); }};
  calls["torch.where"] = {
      two, [](Tensors& x) { return at::where(at::arange(x[0].numel()).view(x[0].sizes()).remainder(2).eq(0), x[0], x[1]); }};
}

}  // namespace

void add_torch_calls(CastCalls& calls) {
  calls["torch.bilinear"] = {{{{3, 4}}, {{3, 5}}, {{2, 4, 5}}, {{2}}},
                             [](Tensors& x) { return at::bilinear(x[0], x[1], x[2], x[3]); }};
  add_torch_convolutions(calls);
  add_sequences(calls);
  add_unlisted_products(calls);
  add_unlisted_functions(calls);
}

}  // namespace oracle
