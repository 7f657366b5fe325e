// torch::nn::functional except its losses. For functions that LibTorch composes of several operators, amp::functional is
// called.
#include <ATen/Functions.h>
#include <apex_cpp/amp/functional.h>
#include <torch/nn/functional.h>

#include "tests/oracle/tables/o1_casts_calls.h"

namespace oracle {
namespace {

namespace F = torch::nn::functional;
namespace amp = apex::amp;
using Tensors = CastCall::Tensors;

const CastInput kImage{{2, 3, 6, 6}};

void add_layers(CastCalls& calls) {
  calls["torch.nn.functional.linear"] = {{{{3, 4}}, {{5, 4}}, {{5}}}, [](Tensors& x) { return F::linear(x[0], x[1], x[2]); }};
  calls["torch.nn.functional.bilinear"] = {{{{3, 4}}, {{3, 5}}, {{2, 4, 5}}, {{2}}},
                                           [](Tensors& x) { return F::bilinear(x[0], x[1], x[2], x[3]); }};
  calls["torch.nn.functional.embedding"] = {{kMatrix}, [](Tensors& x) { return F::embedding(at::arange(3, at::kLong), x[0]); }};
  calls["torch.nn.functional.dropout"] = {{kMatrix},
                                          [](Tensors& x) { return F::dropout(x[0], F::DropoutFuncOptions().training(false)); }};
}

void add_convolutions(CastCalls& calls) {
  calls["torch.nn.functional.conv1d"] = {{{{2, 3, 8}}, {{4, 3, 3}}, {{4}}},
                                         [](Tensors& x) { return F::conv1d(x[0], x[1], F::Conv1dFuncOptions().bias(x[2])); }};
  calls["torch.nn.functional.conv2d"] = {{{{2, 3, 6, 6}}, {{4, 3, 3, 3}}, {{4}}},
                                         [](Tensors& x) { return F::conv2d(x[0], x[1], F::Conv2dFuncOptions().bias(x[2])); }};
  calls["torch.nn.functional.conv3d"] = {{{{2, 2, 4, 4, 4}}, {{3, 2, 2, 2, 2}}, {{3}}},
                                         [](Tensors& x) { return F::conv3d(x[0], x[1], F::Conv3dFuncOptions().bias(x[2])); }};
  calls["torch.nn.functional.conv_transpose1d"] = {
      {{{2, 3, 8}}, {{3, 4, 3}}, {{4}}},
      [](Tensors& x) { return F::conv_transpose1d(x[0], x[1], F::ConvTranspose1dFuncOptions().bias(x[2])); }};
  calls["torch.nn.functional.conv_transpose2d"] = {
      {{{2, 3, 5, 5}}, {{3, 4, 3, 3}}, {{4}}},
      [](Tensors& x) { return F::conv_transpose2d(x[0], x[1], F::ConvTranspose2dFuncOptions().bias(x[2])); }};
  calls["torch.nn.functional.conv_transpose3d"] = {
      {{{2, 2, 3, 3, 3}}, {{2, 3, 2, 2, 2}}, {{3}}},
      [](Tensors& x) { return F::conv_transpose3d(x[0], x[1], F::ConvTranspose3dFuncOptions().bias(x[2])); }};
  calls["torch.nn.functional.conv_tbc"] = calls.at("torch.conv_tbc");
}

void add_activations(CastCalls& calls) {
  calls["torch.nn.functional.elu"] = {{kMatrix}, [](Tensors& x) { return F::elu(x[0]); }};
  calls["torch.nn.functional.gelu"] = {{kMatrix}, [](Tensors& x) { return F::gelu(x[0]); }};
  calls["torch.nn.functional.leaky_relu"] = {{kMatrix}, [](Tensors& x) { return F::leaky_relu(x[0]); }};
  calls["torch.nn.functional.log_softmax"] = {{kMatrix}, [](Tensors& x) { return F::log_softmax(x[0], 1); }};
  calls["torch.nn.functional.relu"] = {{kMatrix}, [](Tensors& x) { return F::relu(x[0]); }};
  calls["torch.nn.functional.sigmoid"] = {{kMatrix}, [](Tensors& x) { return at::sigmoid(x[0]); }};
  calls["torch.nn.functional.silu"] = {{kMatrix}, [](Tensors& x) { return F::silu(x[0]); }};
  calls["torch.nn.functional.softmax"] = {{kMatrix}, [](Tensors& x) { return F::softmax(x[0], 1); }};
  calls["torch.nn.functional.softmin"] = {{kMatrix}, [](Tensors& x) { return amp::functional::softmin(x[0], 1); }};
  calls["torch.nn.functional.softplus"] = {{kMatrix}, [](Tensors& x) { return F::softplus(x[0]); }};
  calls["torch.nn.functional.tanh"] = {{kMatrix}, [](Tensors& x) { return at::tanh(x[0]); }};
}

at::Tensor batch_norm(Tensors& x) {
  return F::batch_norm(x[0], x[1].detach(), x[2].detach(), F::BatchNormFuncOptions().weight(x[3]).bias(x[4]));
}

void add_normalizations(CastCalls& calls) {
  calls["torch.nn.functional.batch_norm"] = {{kImage, {{3}}, {{3}}, {{3}}, {{3}}}, batch_norm};
  calls["torch.nn.functional.group_norm"] = {{{{2, 4, 5}}, {{4}}, {{4}}}, [](Tensors& x) {
                                               return F::group_norm(x[0], F::GroupNormFuncOptions(2).weight(x[1]).bias(x[2]));
                                             }};
  calls["torch.nn.functional.instance_norm"] = {{kImage}, [](Tensors& x) { return F::instance_norm(x[0]); }};
  calls["torch.nn.functional.layer_norm"] = {{kMatrix, {{4}}, {{4}}}, [](Tensors& x) {
                                               return F::layer_norm(x[0], F::LayerNormFuncOptions({4}).weight(x[1]).bias(x[2]));
                                             }};
  calls["torch.nn.functional.local_response_norm"] = {
      {kImage}, [](Tensors& x) { return amp::functional::local_response_norm(x[0], F::LocalResponseNormFuncOptions(2)); }};
  calls["torch.nn.functional.normalize"] = {{kMatrix}, [](Tensors& x) { return amp::functional::normalize(x[0]); }};
}

void add_distances(CastCalls& calls) {
  calls["torch.nn.functional.cosine_similarity"] = {{kMatrix, kMatrix},
                                                    [](Tensors& x) { return F::cosine_similarity(x[0], x[1]); }};
  calls["torch.nn.functional.pairwise_distance"] = {{kMatrix, kMatrix},
                                                    [](Tensors& x) { return F::pairwise_distance(x[0], x[1]); }};
}

void add_images(CastCalls& calls) {
  calls["torch.nn.functional.avg_pool2d"] = {{kImage},
                                             [](Tensors& x) { return F::avg_pool2d(x[0], F::AvgPool2dFuncOptions(2)); }};
  calls["torch.nn.functional.max_pool2d"] = {{kImage},
                                             [](Tensors& x) { return F::max_pool2d(x[0], F::MaxPool2dFuncOptions(2)); }};
  calls["torch.nn.functional.grid_sample"] = {
      {kImage, {{2, 4, 4, 2}}},
      [](Tensors& x) { return F::grid_sample(x[0], x[1], F::GridSampleFuncOptions().align_corners(false)); }};
  // The mode without a separate operator.
  calls["torch.nn.functional.interpolate"] = {
      {kImage}, [](Tensors& x) {
        const auto options = F::InterpolateFuncOptions().size(std::vector<int64_t>{3, 3}).mode(torch::kArea);
        return amp::functional::interpolate(x[0], options);
      }};
}

}  // namespace

void add_functional_calls(CastCalls& calls) {
  add_layers(calls);
  add_convolutions(calls);
  add_activations(calls);
  add_normalizations(calls);
  add_distances(calls);
  add_images(calls);
}

}  // namespace oracle
