#include <torch/nn/modules/activation.h>

#include "tests/oracle/networks/layers.h"

namespace oracle {
namespace nn = torch::nn;
namespace {

template <class Holder>
Layer make_plain(LayerArgs& args) {
  args.boolean("inplace", false);  // changes no value that anyone reads
  return tensor_layer(Holder());
}

template <class Holder>
Layer make_over_dim(LayerArgs& args) {
  return tensor_layer(Holder(args.integer("dim")));
}

Layer make_leaky_relu(LayerArgs& args) {
  args.boolean("inplace", false);
  return tensor_layer(nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(args.number("negative_slope", 0.01))));
}

Layer make_elu(LayerArgs& args) { return tensor_layer(nn::ELU(nn::ELUOptions().alpha(args.number("alpha", 1.0)))); }

Layer make_celu(LayerArgs& args) { return tensor_layer(nn::CELU(nn::CELUOptions().alpha(args.number("alpha", 1.0)))); }

Layer make_gelu(LayerArgs& args) {
  const Json* approximate = args.find("approximate");
  return tensor_layer(nn::GELU(nn::GELUOptions().approximate(approximate ? approximate->as_string() : "none")));
}

Layer make_softplus(LayerArgs& args) {
  return tensor_layer(
      nn::Softplus(nn::SoftplusOptions().beta(args.number("beta", 1.0)).threshold(args.number("threshold", 20.0))));
}

Layer make_hardtanh(LayerArgs& args) {
  return tensor_layer(
      nn::Hardtanh(nn::HardtanhOptions().min_val(args.number("min_val", -1.0)).max_val(args.number("max_val", 1.0))));
}

Layer make_prelu(LayerArgs& args) {
  nn::PReLUOptions options;
  options.num_parameters(args.integer("num_parameters", 1)).init(args.number("init", 0.25));
  return tensor_layer(nn::PReLU(options));
}

Layer make_glu(LayerArgs& args) { return tensor_layer(nn::GLU(nn::GLUOptions(args.integer("dim", -1)))); }

}  // namespace

void add_activation_layers(LayerRegistry& registry) {
  registry["ReLU"] = make_plain<nn::ReLU>;
  registry["ReLU6"] = make_plain<nn::ReLU6>;
  registry["Tanh"] = make_plain<nn::Tanh>;
  registry["Sigmoid"] = make_plain<nn::Sigmoid>;
  registry["LogSigmoid"] = make_plain<nn::LogSigmoid>;
  registry["SELU"] = make_plain<nn::SELU>;
  registry["SiLU"] = make_plain<nn::SiLU>;
  registry["Mish"] = make_plain<nn::Mish>;
  registry["Softsign"] = make_plain<nn::Softsign>;
  registry["Tanhshrink"] = make_plain<nn::Tanhshrink>;
  registry["Softmax"] = make_over_dim<nn::Softmax>;
  registry["Softmin"] = make_over_dim<nn::Softmin>;
  registry["LogSoftmax"] = make_over_dim<nn::LogSoftmax>;
  registry["LeakyReLU"] = make_leaky_relu;
  registry["ELU"] = make_elu;
  registry["CELU"] = make_celu;
  registry["GELU"] = make_gelu;
  registry["Softplus"] = make_softplus;
  registry["Hardtanh"] = make_hardtanh;
  registry["PReLU"] = make_prelu;
  registry["GLU"] = make_glu;
}

}  // namespace oracle
