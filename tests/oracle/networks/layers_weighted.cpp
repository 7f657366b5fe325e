// Linear, convolutions, embedding: layers whose weights amp casts.
#include <ATen/Functions.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>

#include "tests/oracle/networks/layers.h"
#include "tests/oracle/verdict/report.h"

namespace oracle {
namespace nn = torch::nn;
namespace {

template <size_t D>
std::array<int64_t, D> expand(const std::vector<int64_t>& sizes) {
  std::array<int64_t, D> expanded{};
  std::copy_n(sizes.begin(), D, expanded.begin());
  return expanded;
}

Layer make_linear(LayerArgs& args) {
  return tensor_layer(nn::Linear(
      nn::LinearOptions(args.integer("in_features"), args.integer("out_features")).bias(args.boolean("bias", true))));
}

template <size_t D, class Holder>
Layer make_conv(LayerArgs& args) {
  nn::ConvOptions<D> options(args.integer("in_channels"), args.integer("out_channels"),
                             expand<D>(args.sizes("kernel_size", D)));
  options.stride(expand<D>(args.sizes("stride", D, 1)));
  const Json* padding = args.find("padding");
  if (padding && padding->is_string()) throw NeedsFeature("padding '" + padding->as_string() + "' of a convolution");
  options.padding(expand<D>(args.sizes("padding", D, 0)));
  options.dilation(expand<D>(args.sizes("dilation", D, 1)));
  options.groups(args.integer("groups", 1)).bias(args.boolean("bias", true));
  return tensor_layer(Holder(options));
}

template <size_t D, class Holder>
Layer make_conv_transpose(LayerArgs& args) {
  nn::ConvTransposeOptions<D> options(args.integer("in_channels"), args.integer("out_channels"),
                                      expand<D>(args.sizes("kernel_size", D)));
  options.stride(expand<D>(args.sizes("stride", D, 1))).padding(expand<D>(args.sizes("padding", D, 0)));
  options.output_padding(expand<D>(args.sizes("output_padding", D, 0))).dilation(expand<D>(args.sizes("dilation", D, 1)));
  options.groups(args.integer("groups", 1)).bias(args.boolean("bias", true));
  return tensor_layer(Holder(options));
}

// torch.matmul(x, weight).pow(2)
Layer make_mat_pow(LayerArgs& args) {
  auto module = std::make_shared<nn::Module>("MatPow");
  const at::Tensor weight = module->register_parameter("weight", at::zeros({args.integer("n_in"), args.integer("n_out")}));
  return {module, [weight](const Tensors& x) { return Tensors{at::matmul(x.at(0), weight).pow(2)}; }};
}

Layer make_embedding(LayerArgs& args) {
  nn::EmbeddingOptions options(args.integer("num_embeddings"), args.integer("embedding_dim"));
  if (args.has("padding_idx")) options.padding_idx(args.integer("padding_idx"));
  return tensor_layer(nn::Embedding(options));
}

}  // namespace

void add_weighted_layers(LayerRegistry& registry) {
  registry["Linear"] = make_linear;
  registry["Conv1d"] = make_conv<1, nn::Conv1d>;
  registry["Conv2d"] = make_conv<2, nn::Conv2d>;
  registry["Conv3d"] = make_conv<3, nn::Conv3d>;
  registry["ConvTranspose1d"] = make_conv_transpose<1, nn::ConvTranspose1d>;
  registry["ConvTranspose2d"] = make_conv_transpose<2, nn::ConvTranspose2d>;
  registry["ConvTranspose3d"] = make_conv_transpose<3, nn::ConvTranspose3d>;
  registry["MatPow"] = make_mat_pow;
  registry["Embedding"] = make_embedding;
}

}  // namespace oracle
