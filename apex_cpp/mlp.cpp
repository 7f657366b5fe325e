#include <apex_cpp/mlp.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>

#include <apex_cpp/amp/casts.h>

#include <cmath>
#include <utility>

namespace apex::mlp {
namespace {

using Activation = at::Tensor& (*)(at::Tensor&);

Activation activation_named(const std::string& name) {
  if (name == "none") return [](at::Tensor& x) -> at::Tensor& { return x; };
  if (name == "relu") return [](at::Tensor& x) -> at::Tensor& { return x.relu_(); };
  if (name == "sigmoid") return [](at::Tensor& x) -> at::Tensor& { return x.sigmoid_(); };
  C10_THROW_ERROR(TypeError, "MLP: activation is '" + name + "'. It must be 'none', 'relu' or 'sigmoid'.");
}

void check_sizes(const std::vector<int64_t>& sizes) {
  TORCH_CHECK_VALUE(sizes.size() >= 2, "MLP: mlp_sizes is ", sizes, ". Name the features of the input and of each layer.");
  for (const int64_t size : sizes) {
    TORCH_CHECK_VALUE(size > 0, "MLP: mlp_sizes is ", sizes, ". Each size must be positive.");
  }
}

}  // namespace

MLPImpl::MLPImpl(std::vector<int64_t> mlp_sizes_, bool bias_, std::string activation_)
    : mlp_sizes(std::move(mlp_sizes_)), bias(bias_), activation(std::move(activation_)) {
  check_sizes(mlp_sizes);
  activation_named(activation);
  reset();
}

void MLPImpl::reset() {
  weights.clear();
  biases.clear();
  for (size_t i = 0; i + 1 < mlp_sizes.size(); ++i) {
    const std::string number = std::to_string(i);
    weights.push_back(register_parameter("weight_" + number, at::empty({mlp_sizes[i + 1], mlp_sizes[i]})));
    if (bias) biases.push_back(register_parameter("bias_" + number, at::empty({mlp_sizes[i + 1]})));
  }
  reset_parameters();
}

void MLPImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  for (at::Tensor& weight : weights) {
    weight.normal_(0, std::sqrt(2.0 / static_cast<double>(weight.size(0) + weight.size(1))));
  }
  for (at::Tensor& each : biases) each.normal_(0, std::sqrt(1.0 / static_cast<double>(each.size(0))));
}

void MLPImpl::pretty_print(std::ostream& stream) const {
  stream << "apex::mlp::MLP(MLP sizes: " << mlp_sizes << ", bias=" << std::boolalpha << bias << ", activation=" << activation
         << ")";
}

at::Tensor MLPImpl::forward(const at::Tensor& input) {
  TORCH_CHECK(input.dim() > 0 && input.size(-1) == mlp_sizes.front(), "MLP: the input has shape ", input.sizes(),
              ", whose last dimension is not the first of the MLP's sizes ", mlp_sizes, ".");
  const auto layers = [activate = activation_named(activation)](at::Tensor x, const std::vector<at::Tensor>& all_weights,
                                                                const std::vector<at::Tensor>& all_biases) {
    for (size_t i = 0; i < all_weights.size(); ++i) {
      x = at::linear(x, all_weights[i], all_biases.empty() ? at::Tensor() : all_biases[i]);
      activate(x);
    }
    return x;
  };
  return amp::half_function(layers)(input, weights, biases);
}

}  // namespace apex::mlp
