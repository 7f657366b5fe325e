#include "pass.h"

#include <algorithm>

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <apex_cpp/amp.h>
#include <torch/nn/modules/dropout.h>
#include <torch/optim/sgd.h>

#include "models/models.h"
#include "models/network.h"
#include "training/step.h"
#include "training/torch_amp.h"

namespace comparison {
namespace {

namespace amp = apex::amp;

using train::Batch;

Batch first_batch(const PassSetup& setup) {
  const auto& set = setup.data.train;
  const auto size = std::min(setup.config.batch_size, set.size());
  return {train::normalized(set.images.narrow(0, 0, size).to(setup.device), setup.data),
          set.labels.narrow(0, 0, size).to(setup.device)};
}

train::Classifier make_model(const PassSetup& setup) {
  at::manual_seed(static_cast<uint64_t>(setup.config.seed));
  auto model = train::make_classifier(setup.config.model, train::shape_of(setup.data), setup.data.classes);
  model->to(setup.device);
  for (const auto& module : model->modules()) {
    if (module->as<torch::nn::Dropout>()) module->eval();
  }
  return model;
}

// "torch::nn::Conv2dImpl" -> "Conv2d"
std::string type_of(const torch::nn::Module& module) {
  auto name = module.name();
  name = name.substr(name.rfind(':') == std::string::npos ? 0 : name.rfind(':') + 1);
  const std::string ending = "Impl";
  const bool ends = name.size() > ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
  return ends ? name.substr(0, name.size() - ending.size()) : name;
}

// The network's layers one by one, each output kept.
at::Tensor forward(train::Network& net, at::Tensor x, std::vector<PassTensor>& outputs) {
  size_t position = 0;
  for (auto& layer : *net->layers) {
    x = layer.forward(x);
    if (x.requires_grad()) x.retain_grad();
    outputs.push_back({"layers." + std::to_string(position++), type_of(*layer.ptr()), x, x});
  }
  return x;
}

// As a step has it; times the scale where no level scales it.
template <class Forward>
at::Tensor loss_of(const Batch& batch, const Way& way, double loss_scale, Forward&& forward) {
  if (!way.torch_amp) return at::cross_entropy_loss(forward(batch.images), batch.labels);
  const auto guard = train::TorchAmp(*way.torch_amp, batch.images.device()).autocast();
  return at::cross_entropy_loss(forward(batch.images), batch.labels) * loss_scale;
}

template <class Loss>
void record_trace(torch::optim::Optimizer& optimizer, const std::string& path, Loss&& make_loss) {
  const amp::trace trace;
  const auto loss = make_loss();
  {
    auto scaled_loss = amp::scale_loss(loss, optimizer);
    scaled_loss.backward();
  }
  optimizer.zero_grad();
  trace.write_csv(path);
}

std::vector<PassTensor> gradients_of(const std::vector<PassTensor>& outputs, double loss_scale) {
  std::vector<PassTensor> gradients;
  for (const auto& each : outputs) {
    if (!each.value.requires_grad()) continue;
    const auto& grad = each.value.grad();
    gradients.push_back({each.name, each.layer_type, grad.to(at::kDouble) / loss_scale, grad});
  }
  return gradients;
}

// Called within the `scale_loss` block: at its end gradients are unscaled in place.
std::vector<PassTensor> scaled_weight_gradients(train::Network& net) {
  std::vector<PassTensor> gradients;
  for (const auto& named : net->named_parameters()) gradients.push_back({named.key(), "", {}, named.value().grad().clone()});
  return gradients;
}

}  // namespace

Pass make_pass(const PassSetup& setup, const Way& way, double loss_scale, const std::string& trace) {
  amp::reset();
  const auto batch = first_batch(setup);
  auto model = make_model(setup);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, optimizer] = amp::initialize(model, sgd, way.level, amp::InitializeOptions().verbosity(0).loss_scale(loss_scale));
  if (!setup.weights.empty()) amp::load_safetensors(setup.weights, net);
  const auto as_trained = [&, &net = net](const at::Tensor& images) { return net->forward(images); };
  if (!trace.empty()) record_trace(optimizer, trace, [&] { return loss_of(batch, way, loss_scale, as_trained); });
  Pass pass;
  const auto kept = [&, &net = net](const at::Tensor& images) { return forward(net, images, pass.outputs); };
  const auto loss = loss_of(batch, way, loss_scale, kept);
  {
    auto scaled_loss = amp::scale_loss(loss, optimizer);
    scaled_loss.backward();
    pass.weight_gradients = scaled_weight_gradients(net);
  }
  pass.gradients = gradients_of(pass.outputs, loss_scale);
  const auto stepped = amp::master_params(optimizer);
  for (size_t i = 0; i < stepped.size(); ++i) {
    pass.weight_gradients[i].value = way.torch_amp ? stepped[i].grad() / loss_scale : stepped[i].grad();
  }
  amp::reset();  // what is computed from these is not cast
  return pass;
}

}  // namespace comparison
