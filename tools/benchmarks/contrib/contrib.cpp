// The fused parts of apex.contrib, normalization, mlp and fused_dense, forward and backward, compared with LibTorch's
// equivalents.
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <apex_cpp/contrib.h>
#include <apex_cpp/fused_dense.h>
#include <apex_cpp/mlp.h>
#include <apex_cpp/normalization.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>

#include "../kernels/compare.h"
#include "../suites.h"

namespace bench {
namespace contrib {
namespace {

using kernels::Access;
using kernels::Comparison;
using kernels::Tensors;

struct Type {
  const char* name;
  at::ScalarType dtype;
};
constexpr Type kTypes[] = {{"f32", at::kFloat}, {"bf16", at::kBFloat16}};

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  return at::randn(sizes, at::device(device)).to(dtype);
}

// The traffic bound: two passes over the logits, one of which writes their gradient.
Comparison xentropy(int64_t rows, int64_t classes, at::ScalarType dtype, at::Device device) {
  const at::Tensor logits = random({rows, classes}, dtype, device).requires_grad_();
  const at::Tensor labels = at::randint(classes, {rows}, at::device(device).dtype(at::kLong));
  const auto options = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum).label_smoothing(0.1);
  const auto backward = [logits](const at::Tensor& loss) {
    loss.backward();
    logits.mutable_grad().reset();
  };
  const auto ours = [=] {
    backward(apex::contrib::xentropy::SoftmaxCrossEntropyLoss::apply(logits, labels, 0.1, /*padding_idx=*/-100).sum());
  };
  const auto theirs = [=] { backward(torch::nn::functional::cross_entropy(logits, labels, options)); };
  const Tensors x{logits.detach()}, dx{at::empty_like(logits)};
  return {{{"apex_cpp", ours}, {"torch", theirs}}, {{{x, Access::read}}, {{x, Access::read}, {dx, Access::write}}}};
}

Comparison clipping(const kernels::Case& shapes, at::ScalarType dtype, at::Device device) {
  const Tensors grads = kernels::random(shapes, dtype, device);
  Tensors params;
  for (const at::Tensor& grad : grads) {
    params.push_back(at::empty_like(grad).requires_grad_());
    params.back().mutable_grad() = grad;
  }
  const auto ours = [params] { apex::contrib::clip_grad_norm_(params, 1e4); };
  const auto theirs = [params] { torch::nn::utils::clip_grad_norm_(params, 1e4); };
  return {{{"apex_cpp", ours}, {"torch", theirs}}, {{{grads, Access::read}}, {{grads, Access::update}}}};
}

// The traffic bound: the forward pass, and a backward pass that reads each input once.
template <class Ours, class Theirs>
Comparison normalization(const Ours& ours, const Theirs& theirs, int64_t rows, int64_t size, at::ScalarType dtype,
                         at::Device device) {
  const at::Tensor x = random({rows, size}, dtype, device).requires_grad_(), dy = random({rows, size}, dtype, device);
  const at::Tensor weight = at::ones({size}, dy.options()).requires_grad_(),
                   bias = at::zeros({size}, dy.options()).requires_grad_();
  const auto both = [=](const auto& forward) {
    forward(x, weight, bias).backward(dy);
    for (const at::Tensor& tensor : {x, weight, bias}) tensor.mutable_grad().reset();
  };
  const Tensors input{x.detach()}, grad{dy}, output{at::empty_like(dy)};
  return {{{"apex_cpp", [=] { both(ours); }}, {"torch", [=] { both(theirs); }}},
          {{{input, Access::read}, {output, Access::write}},
           {{grad, Access::read}, {input, Access::read}, {output, Access::write}}}};
}

Comparison layer_norm(int64_t rows, int64_t size, at::ScalarType dtype, at::Device device) {
  const auto ours = [size](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return apex::normalization::fused_layer_norm_affine(x, weight, bias, {size});
  };
  const auto theirs = [size](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return at::layer_norm(x, {size}, weight, bias, 1e-6);
  };
  return normalization(ours, theirs, rows, size, dtype, device);
}

Comparison rms_norm(int64_t rows, int64_t size, at::ScalarType dtype, at::Device device) {
  const auto ours = [size](const at::Tensor& x, const at::Tensor& weight, const at::Tensor&) {
    return apex::normalization::fused_rms_norm_affine(x, weight, {size});
  };
  const auto theirs = [size](const at::Tensor& x, const at::Tensor& weight, const at::Tensor&) {
    return at::rms_norm(x, {size}, weight, 1e-6);
  };
  return normalization(ours, theirs, rows, size, dtype, device);
}

template <class Ours, class Theirs>
Comparison layers(Ours ours, Theirs theirs, int64_t features, at::ScalarType dtype, at::Device device) {
  ours->to(device, dtype);
  theirs->to(device, dtype);
  const at::Tensor input = random({256, features}, dtype, device);
  const auto weights = ours->parameters();
  return {{{"apex_cpp", [=]() mutable { ours->forward(input).sum().backward(); }},
           {"torch", [=]() mutable { theirs->forward(input).sum().backward(); }}},
          {{{weights, Access::read}}, {{weights, Access::read}}}};
}

Comparison mlp(at::ScalarType dtype, at::Device device) {
  namespace nn = torch::nn;
  return layers(
      apex::mlp::MLP(std::vector<int64_t>{480, 1024, 1024, 512}),
      nn::Sequential(nn::Linear(480, 1024), nn::ReLU(), nn::Linear(1024, 1024), nn::ReLU(), nn::Linear(1024, 512), nn::ReLU()),
      480, dtype, device);
}

Comparison dense_gelu_dense(at::ScalarType dtype, at::Device device) {
  namespace nn = torch::nn;
  return layers(apex::fused_dense::FusedDenseGeluDense(512, 2048, 512),
                nn::Sequential(nn::Linear(512, 2048), nn::GELU(nn::GELUOptions().approximate("tanh")), nn::Linear(2048, 512)),
                512, dtype, device);
}

}  // namespace
}  // namespace contrib

void run_contrib(Runner& runner) {
  const auto device = runner.device();
  const auto measure = [&](const std::string& group, const std::string& name, const auto& comparison) {
    if (runner.wants(group, name)) kernels::compare(runner, group, name, comparison());
  };
  for (const auto& [name, dtype] : contrib::kTypes) {
    const std::string type = name;
    const auto as = [dtype = dtype, device](const auto& make, auto... sizes) {
      return [=] { return make(sizes..., dtype, device); };
    };
    measure("xentropy " + type, "8192 x 1000", as(contrib::xentropy, 8192, 1000));
    measure("xentropy " + type, "512 x 32000", as(contrib::xentropy, 512, 32000));
    runner.print_group();
    for (const auto& shapes : kernels::cases()) {
      measure("clip_grad " + type, shapes.name, [&, dtype = dtype] { return contrib::clipping(shapes, dtype, device); });
    }
    runner.print_group();
    for (const int64_t size : {512, 4096, 16384}) {
      const int64_t rows = (int64_t{32} << 20) / size;
      const std::string shape = std::to_string(rows) + " x " + std::to_string(size);
      measure("layer_norm " + type, shape, as(contrib::layer_norm, rows, size));
      measure("rms_norm " + type, shape, as(contrib::rms_norm, rows, size));
    }
    runner.print_group();
    measure("dense " + type, "MLP", as(contrib::mlp));
    measure("dense " + type, "FusedDenseGeluDense", as(contrib::dense_gelu_dense));
    runner.print_group();
  }
}

}  // namespace bench
