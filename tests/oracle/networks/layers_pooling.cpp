#include <torch/nn/modules/pooling.h>

#include "tests/oracle/networks/layers.h"

namespace oracle {
namespace nn = torch::nn;
namespace {

template <size_t D, class Holder, class Options>
Layer make_max_pool(LayerArgs& args) {
  using Array = torch::ExpandingArray<D>;
  const std::vector<int64_t> kernel = args.sizes("kernel_size", D);
  const std::vector<int64_t> stride = args.has("stride") ? args.sizes("stride", D) : kernel;
  Options options{Array(kernel)};
  options.stride(Array(stride)).padding(Array(args.sizes("padding", D, 0)));
  options.dilation(Array(args.sizes("dilation", D, 1))).ceil_mode(args.boolean("ceil_mode", false));
  return tensor_layer(Holder(options));
}

template <size_t D, class Holder, class Options>
Layer make_avg_pool(LayerArgs& args) {
  using Array = torch::ExpandingArray<D>;
  const std::vector<int64_t> kernel = args.sizes("kernel_size", D);
  const std::vector<int64_t> stride = args.has("stride") ? args.sizes("stride", D) : kernel;
  Options options{Array(kernel)};
  options.stride(Array(stride)).padding(Array(args.sizes("padding", D, 0)));
  options.ceil_mode(args.boolean("ceil_mode", false)).count_include_pad(args.boolean("count_include_pad", true));
  return tensor_layer(Holder(options));
}

template <class Holder>
Layer make_adaptive_1d(LayerArgs& args) {
  return tensor_layer(Holder(args.sizes("output_size", 1)[0]));
}

template <class Holder, class Options>
Layer make_adaptive_2d(LayerArgs& args) {
  const std::vector<int64_t> size = args.sizes("output_size", 2);
  return tensor_layer(Holder(Options({size[0], size[1]})));
}

}  // namespace

void add_pooling_layers(LayerRegistry& registry) {
  registry["MaxPool1d"] = make_max_pool<1, nn::MaxPool1d, nn::MaxPool1dOptions>;
  registry["MaxPool2d"] = make_max_pool<2, nn::MaxPool2d, nn::MaxPool2dOptions>;
  registry["AvgPool1d"] = make_avg_pool<1, nn::AvgPool1d, nn::AvgPool1dOptions>;
  registry["AvgPool2d"] = make_avg_pool<2, nn::AvgPool2d, nn::AvgPool2dOptions>;
  registry["AdaptiveAvgPool1d"] = make_adaptive_1d<nn::AdaptiveAvgPool1d>;
  registry["AdaptiveAvgPool2d"] = make_adaptive_2d<nn::AdaptiveAvgPool2d, nn::AdaptiveAvgPool2dOptions>;
  registry["AdaptiveMaxPool2d"] = make_adaptive_2d<nn::AdaptiveMaxPool2d, nn::AdaptiveMaxPool2dOptions>;
}

}  // namespace oracle
