#include "training.h"

#include <ATen/Functions.h>
#include <apex_cpp/amp/autocast.h>
#include <apex_cpp/amp/grad_scaler.h>
#include <apex_cpp/amp/initialize.h>
#include <apex_cpp/amp/master_params.h>
#include <apex_cpp/amp/scale_loss.h>
#include <apex_cpp/optimizers/fused_adam.h>
#include <torch/optim/adamw.h>

#include <utility>

namespace bench::train {
namespace {

namespace amp = apex::amp;
using apex::optimizers::FusedAdam, apex::optimizers::FusedAdamOptions;
using torch::optim::AdamW, torch::optim::AdamWOptions;

constexpr double kRate = 1e-4, kWeightDecay = 0.01;

template <class Optimizer>
Optimizer optimizer_of(const Network& network) {
  if constexpr (std::is_same_v<Optimizer, FusedAdam>) {
    return FusedAdam(network->parameters(), FusedAdamOptions(kRate).weight_decay(kWeightDecay).materialize_master_grads(false));
  } else {
    return AdamW(network->parameters(), AdamWOptions(kRate).weight_decay(kWeightDecay));
  }
}

template <class Model>
at::Tensor loss_of(Model& model, const Batch& batch) {
  return at::cross_entropy_loss(model->forward(batch.input), batch.target);
}

/// Members common to every way.
class NetworkTraining : public Training {
 public:
  explicit NetworkTraining(Network network) : network_(std::move(network)) {}
  std::vector<at::Tensor> parameters() const override { return network_->parameters(); }
  std::vector<at::Tensor> buffers() const override { return network_->buffers(); }

 protected:
  Network network_;
};

/// Training without amp's levels.
template <class Optimizer>
class TorchTraining : public NetworkTraining {
 public:
  TorchTraining(const Way& way, Network network)
      : NetworkTraining(std::move(network)), type_(way.autocast), optimizer_(optimizer_of<Optimizer>(network_)) {
    if (type_ == at::kHalf) scaler_.emplace(device());
  }

  void step(const Batch& batch, const Observer& reached) override {
    optimizer_.zero_grad();
    reached(Point::gradients_dropped);
    const auto loss = type_ ? autocast_loss(batch) : loss_of(network_, batch);
    reached(Point::forward_done);
    (scaler_ ? scaler_->scale(loss) : loss).backward();
    reached(Point::backward_done);
    if (!scaler_) {
      optimizer_.step();
    } else {
      scaler_->step(optimizer_);
      scaler_->update();
    }
  }
  double loss_scale() override { return scaler_ ? scaler_->get_scale() : 1; }

 private:
  c10::DeviceType device() const { return network_->parameters().front().device().type(); }
  at::Tensor autocast_loss(const Batch& batch) {
    const amp::autocast guard(device(), type_);
    return loss_of(network_, batch);
  }

  std::optional<c10::ScalarType> type_;
  Optimizer optimizer_;
  std::optional<amp::GradScaler> scaler_;
};

amp::InitializeOptions options_of(const Way& way) {
  auto options = amp::InitializeOptions().verbosity(0);
  return way.loss_scale.empty() ? options : options.loss_scale(way.loss_scale);
}

template <class Optimizer>
class AmpTraining : public NetworkTraining {
 public:
  AmpTraining(const Way& way, Network network)
      : NetworkTraining(std::move(network)),
        optimizer_(optimizer_of<Optimizer>(network_)),
        handles_(amp::initialize(network_, optimizer_, way.level, options_of(way))) {}

  void step(const Batch& batch, const Observer& reached) override {
    auto& [model, optimizer] = handles_;
    optimizer.zero_grad();
    reached(Point::gradients_dropped);
    const auto loss = loss_of(model, batch);
    reached(Point::forward_done);
    {
      auto scaled_loss = amp::scale_loss(loss, optimizer);
      scaled_loss.backward();
      reached(Point::backward_done);
      scaled_loss.finish();
    }
    optimizer.step();
  }
  double loss_scale() override { return amp::step_result(handles_.second).loss_scale; }

 private:
  using Handles = decltype(amp::initialize(std::declval<Network&>(), std::declval<Optimizer&>()));

  Optimizer optimizer_;
  Handles handles_;
};

template <class Optimizer>
std::unique_ptr<Training> start_with(const Way& way, Network network) {
  if (way.level.empty()) return std::make_unique<TorchTraining<Optimizer>>(way, std::move(network));
  return std::make_unique<AmpTraining<Optimizer>>(way, std::move(network));
}

}  // namespace

std::unique_ptr<Training> start(const Way& way, Network network) {
  return way.fused ? start_with<FusedAdam>(way, std::move(network)) : start_with<AdamW>(way, std::move(network));
}

}  // namespace bench::train
