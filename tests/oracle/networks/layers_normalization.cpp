#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include "tests/oracle/networks/layers.h"

namespace oracle {
namespace nn = torch::nn;
namespace {

template <class Holder>
Layer make_batch_norm(LayerArgs& args) {
  nn::BatchNormOptions options(args.integer("num_features"));
  options.eps(args.number("eps", 1e-5)).momentum(args.number("momentum", 0.1));
  options.affine(args.boolean("affine", true)).track_running_stats(args.boolean("track_running_stats", true));
  return tensor_layer(Holder(options));
}

template <class Holder>
Layer make_instance_norm(LayerArgs& args) {
  nn::InstanceNormOptions options(args.integer("num_features"));
  options.eps(args.number("eps", 1e-5)).momentum(args.number("momentum", 0.1));
  options.affine(args.boolean("affine", false)).track_running_stats(args.boolean("track_running_stats", false));
  return tensor_layer(Holder(options));
}

Layer make_layer_norm(LayerArgs& args) {
  const Json* shape = args.find("normalized_shape");
  nn::LayerNormOptions options(shape && shape->is_array() ? shape->as_ints() : args.sizes("normalized_shape", 1));
  options.eps(args.number("eps", 1e-5)).elementwise_affine(args.boolean("elementwise_affine", true));
  return tensor_layer(nn::LayerNorm(options));
}

Layer make_group_norm(LayerArgs& args) {
  nn::GroupNormOptions options(args.integer("num_groups"), args.integer("num_channels"));
  options.eps(args.number("eps", 1e-5)).affine(args.boolean("affine", true));
  return tensor_layer(nn::GroupNorm(options));
}

}  // namespace

void add_normalization_layers(LayerRegistry& registry) {
  registry["BatchNorm1d"] = make_batch_norm<nn::BatchNorm1d>;
  registry["BatchNorm2d"] = make_batch_norm<nn::BatchNorm2d>;
  registry["BatchNorm3d"] = make_batch_norm<nn::BatchNorm3d>;
  registry["InstanceNorm1d"] = make_instance_norm<nn::InstanceNorm1d>;
  registry["InstanceNorm2d"] = make_instance_norm<nn::InstanceNorm2d>;
  registry["LayerNorm"] = make_layer_norm;
  registry["GroupNorm"] = make_group_norm;
}

}  // namespace oracle
