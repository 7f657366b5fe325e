#include "tests/state_machine/product.h"

#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/torch_compat/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "tests/state_machine/program.h"

namespace apex::test {
namespace {

using torch::Tensor;

struct BystanderImpl : torch::nn::Module {
  BystanderImpl() : weight(register_parameter("weight", torch::ones({2, 2}))) {}
  Tensor forward(const Tensor& x) { return x.mm(weight); }
  Tensor weight;
};
TORCH_MODULE(Bystander);

/// Tells an exception that the program throws itself.
struct Abandoned {};

Tensor tensor_of(const Values& values, torch::ScalarType dtype) {
  Tensor tensor = torch::empty({2}, dtype);
  for (int i = 0; i < 2; ++i) {
    if (dtype == torch::kFloat) {
      tensor.data_ptr<float>()[i] = values[i];
    } else if (dtype == torch::kHalf) {
      tensor.data_ptr<at::Half>()[i] = values[i];
    } else {
      tensor.data_ptr<at::BFloat16>()[i] = values[i];
    }
  }
  return tensor;
}

Values values_of(const Tensor& tensor) {
  TORCH_CHECK(tensor.numel() == 2, "a tensor of this test has two elements");
  switch (tensor.scalar_type()) {
    case torch::kFloat:
      return {tensor.const_data_ptr<float>()[0], tensor.const_data_ptr<float>()[1]};
    case torch::kHalf:
      return {tensor.const_data_ptr<at::Half>()[0], tensor.const_data_ptr<at::Half>()[1]};
    default:
      return {tensor.const_data_ptr<at::BFloat16>()[0], tensor.const_data_ptr<at::BFloat16>()[1]};
  }
}

Weight weight_of(const Tensor& tensor) {
  const Tensor& grad = tensor.grad();
  return {values_of(tensor), {grad.defined(), grad.defined() ? values_of(grad) : Values{}}};
}

/// Backward of the sum of derivative * parameter over some parameters: one node, since 100,000 programs run it.
struct LinearBackward : torch::autograd::Node {
  std::vector<std::pair<Values, torch::ScalarType>> terms;

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    const float incoming = grads[0].item<float>();
    torch::autograd::variable_list result;
    for (const auto& [derivative, dtype] : terms) {
      result.push_back(tensor_of({derivative[0] * incoming, derivative[1] * incoming}, dtype));
    }
    return result;
  }
};

/// A loss with these derivatives, of value 1.
Tensor linear_loss(const std::vector<std::pair<Tensor, Values>>& terms) {
  Tensor loss = torch::ones({});
  if (terms.empty()) return loss.requires_grad_();
  auto node = std::make_unique<LinearBackward>();
  torch::autograd::edge_list edges;
  for (const auto& [param, derivative] : terms) {
    edges.push_back(torch::autograd::impl::gradient_edge(param));
    node->terms.emplace_back(derivative, param.scalar_type());
  }
  node->set_next_edges(std::move(edges));
  torch::autograd::set_history(loss, torch_compat::NodePtr(std::move(node)));
  return loss;
}

template <class Opt>
class TypedHandle : public Handle {
 public:
  explicit TypedHandle(amp::AmpOptimizer<Opt>&& handle) : handle_(std::move(handle)) {}
  torch::optim::Optimizer& optimizer() override { return handle_; }
  void zero_grad(bool set_to_none) override { handle_.zero_grad(set_to_none); }
  void add_param_group(std::vector<Tensor> params) override {
    handle_.add_param_group(torch::optim::OptimizerParamGroup(std::move(params)));
  }
  Tensor momentum_of(const Tensor& param) override {
    const auto found = handle_.state().find(param.unsafeGetTensorImpl());
    if (found == handle_.state().end()) return {};
    if constexpr (std::is_same_v<Opt, torch::optim::SGD>) {
      return static_cast<torch::optim::SGDParamState&>(*found->second).momentum_buffer();
    } else {
      return static_cast<optimizers::FusedSGDParamState&>(*found->second).momentum_buffer;
    }
  }

 private:
  amp::AmpOptimizer<Opt> handle_;
};

amp::InitializeOptions quiet() { return amp::InitializeOptions().verbosity(0); }

amp::InitializeOptions options_of(const Config& config) {
  amp::InitializeOptions options = quiet();
  options.num_losses(config.losses).max_loss_scale(config.max_scale);
  if (config.dynamic) {
    options.loss_scale("dynamic");
  } else {
    options.loss_scale(config.static_scale);
  }
  if (config.min_scale) options.min_loss_scale(*config.min_scale);
  return options;
}

template <class Opt, class Options>
void initialize_as(const Config& config, const Options& options, Net& net, std::vector<Tensor> first,
                   std::vector<Tensor> second, std::vector<std::unique_ptr<Handle>>& handles) {
  Opt a(std::move(first), options), b(std::move(second), options);
  auto [model, opts] = amp::initialize(net, std::tie(a, b), config.level, options_of(config));
  handles.push_back(std::make_unique<TypedHandle<Opt>>(std::move(std::get<0>(opts))));
  handles.push_back(std::make_unique<TypedHandle<Opt>>(std::move(std::get<1>(opts))));
}

char letter_of(amp::ScaleChange change) { return amp::name_of(change)[0]; }

}  // namespace

NetImpl::NetImpl(const std::vector<std::pair<int, Tensor>>& parameters) {
  for (const auto& [index, tensor] : parameters) register_parameter("p" + std::to_string(index), tensor);
}

Product::Product(const Config& config) : config_(config) {
  std::vector<std::pair<int, Tensor>> in_model;
  for (int i = 0; i < kParams; ++i) {
    params_[i] = tensor_of(initial_values(i), torch::kFloat).requires_grad_();
    if (is_cast(i)) in_model.emplace_back(i, params_[i]);
  }
  net_ = Net(in_model);
  initialize();
}

void Product::initialize() {
  owner_ = {0, 0, 1, 0, 1, -1, -1};
  const std::vector<Tensor> first{params_[0], params_[1], params_[3]}, second{params_[2], params_[4]};
  if (config_.kind == OptimizerKind::sgd) {
    const auto options = torch::optim::SGDOptions(kLearningRate).momentum(config_.momentum);
    initialize_as<torch::optim::SGD>(config_, options, net_, first, second, handles_);
  } else {
    const auto options = optimizers::FusedSGDOptions(kLearningRate)
                             .momentum(config_.momentum)
                             .materialize_master_grads(config_.kind == OptimizerKind::fused_sgd);
    initialize_as<optimizers::FusedSGD>(config_, options, net_, first, second, handles_);
  }
  scalers_ = &amp::detail::current_session()->scalers;
  for (int i = 0; i < config_.losses; ++i) {
    amp::loss_scaler(i).set_scale_window(config_.scale_window);
    amp::loss_scaler(i).set_skip_warning(0);
    amp::loss_scaler(i).history().set_capacity(kHistory);
  }
}

Product::~Product() { amp::reset(); }

bool Product::is_newest() const { return scalers_ == &amp::detail::current_session()->scalers; }

void Product::initialize_again(const Event& event) {
  if (event.keeps_handles) kept_.emplace_back(std::make_shared<decltype(handles_)>(std::move(handles_)));
  handles_.clear();
  config_ = *event.again;
  initialize();
}

/// A model of its own, which trains a step at this level.
void Product::train_bystander(const Event& event) {
  Bystander layer;
  torch::optim::SGD sgd(layer->parameters(), kLearningRate);
  auto handles = std::make_shared<decltype(amp::initialize(layer, sgd, *event.bystander_level))>(
      amp::initialize(layer, sgd, *event.bystander_level, quiet()));
  auto& [model, optimizer] = *handles;
  auto scaled = amp::scale_loss(model->forward(torch::ones({1, 2})).sum(), optimizer);
  scaled.backward();
  scaled.finish();
  optimizer.step();
  if (event.keeps_handles) kept_.emplace_back(std::move(handles));
}

void Product::apply(const Event& event) {
  threw_ = false;
  switch (event.kind) {
    case Event::backward:
      return backward(event);
    case Event::plain_backward: {
      std::vector<std::pair<Tensor, Values>> terms;
      for (int i = 0; i < kParams; ++i) {
        const auto& derivative = event.derivatives[i];
        if (derivative.defined && params_[i].requires_grad() && takes_plain_gradients(config_, i))
          terms.emplace_back(params_[i], derivative.values);
      }
      return linear_loss(terms).backward();
    }
    case Event::step:
      try {
        optimizer(event.optimizer).step();
      } catch (const c10::Error&) {
        threw_ = true;
      }
      return;
    case Event::zero_grad:
      return handles_[event.optimizer]->zero_grad(event.set_to_none);
    case Event::model_zero_grad:
      return model_zero_grad(event.set_to_none);
    case Event::add_group:
      return add_group(event);
    case Event::load_state:
      return load_state(event);
    case Event::save_state:
      if (is_newest()) saved_ = amp::state_dict();
      return;
    case Event::materialize:
      amp::master_params(optimizer(event.optimizer));
      return;
    case Event::initialize:
      return initialize_again(event);
    case Event::bystander:
      return train_bystander(event);
    case Event::freeze:
      params_[event.param].set_requires_grad(!event.on);
      return;
  }
}

void Product::backward(const Event& event) {
  std::vector<torch::optim::Optimizer*> listed;
  std::vector<std::pair<Tensor, Values>> terms;
  for (int i = 0; i < kOptimizers; ++i) {
    if (event.optimizers & (1 << i)) listed.push_back(&optimizer(i));
  }
  for (int i = 0; i < kParams; ++i) {
    const bool takes_part = owner_[i] >= 0 && (event.optimizers & (1 << owner_[i])) && params_[i].requires_grad();
    if (takes_part && event.derivatives[i].defined) terms.emplace_back(params_[i], event.derivatives[i].values);
  }
  const auto options =
      amp::ScaleLossOptions(event.loss).delay_unscale(event.delay_unscale).delay_overflow_check(event.delay_overflow_check);
  try {
    auto scaled = amp::scale_loss(linear_loss(terms), listed, options);
    scaled.backward();
    if (event.bystander_level) train_bystander(event);
    if (event.throws) throw Abandoned();
    scaled.finish();
  } catch (const Abandoned&) {
  } catch (const c10::Error&) {
    threw_ = true;
  }
}

void Product::model_zero_grad(bool set_to_none) {
  net_->zero_grad(set_to_none);
  for (int i = 0; i < kParams; ++i) {
    Tensor& grad = params_[i].mutable_grad();
    if (is_cast(i) || !grad.defined()) continue;
    if (set_to_none) {
      grad.reset();
    } else {
      grad.zero_();
    }
  }
}

void Product::add_group(const Event& event) {
  if (owner_[event.param] >= 0) return;
  handles_[event.optimizer]->add_param_group({params_[event.param]});
  owner_[event.param] = event.optimizer;
}

void Product::load_state(const Event& event) {
  if (!is_newest()) return;
  amp::StateDict state;
  if (event.saved.empty()) {
    if (!saved_) return;
    state = *saved_;
  }
  // SD-04: the digits are of no account.
  int digit = static_cast<int>(event.saved.size());
  for (const auto& [scale, unskipped] : event.saved) {
    state.insert("loss_scaler" + std::to_string(--digit), amp::LossScalerState{scale, unskipped});
  }
  if (event.foreign_key) state.insert("scaler", amp::LossScalerState{1.0, 0});
  try {
    amp::load_state_dict(state);
  } catch (const c10::Error&) {
    threw_ = true;
  }
}

// In the optimizer's group, in the place of the parameter: its position is known from the order of additions.
Tensor Product::master_of(int param) {
  if (owner_[param] < 0) return {};
  static constexpr int kPosition[kParams] = {0, 1, 0, 2, 1, 0, 0};
  auto& groups = optimizer(owner_[param]).param_groups();
  if (param < 5) return groups[0].params()[kPosition[param]];
  for (size_t i = 1; i < groups.size(); ++i) {
    const Tensor& in_group = groups[i].params()[0];
    // The first of two added groups differs from the second in its values' owner: a float32 parameter is its own master.
    const bool is_native = in_group.is_same(params_[6]);
    if ((param == 6) == is_native) return in_group;
  }
  return {};
}

State Product::state() {
  State state;
  state.threw = threw_;
  for (int i = 0; i < kParams; ++i) {
    state.params[i] = weight_of(params_[i]);
    const Tensor stepped = master_of(i);
    if (!stepped.defined()) continue;
    state.has_master[i] = !stepped.is_same(params_[i]);
    if (state.has_master[i]) state.masters[i] = weight_of(stepped);
    const Tensor momentum = config_.momentum > 0 ? handles_[owner_[i]]->momentum_of(stepped) : Tensor();
    if (momentum.defined()) state.momentum[i] = values_of(momentum);
  }
  for (int i = 0; i < kOptimizers; ++i) {
    const auto result = amp::step_result(optimizer(i));
    const bool names_gradient = !result.first_nonfinite.empty() && result.inf_count + result.nan_count > 0;
    state.steps[i] = {result.skipped,           result.loss_scale,       result.loss_id,
                      result.loss_scale_before, result.loss_scale_after, names_gradient};
  }
  for (int i = 0; i < config_.losses; ++i) {
    const auto& scaler = scalers_->at(i);
    ScalerState of{scaler.loss_scale(), scaler.unskipped(), scaler.updates(), scaler.skipped_in_a_row(), {}};
    for (const auto& event : scaler.history().events()) {
      of.history.push_back({event.update, event.before, event.after, letter_of(event.change)});
    }
    state.scalers.push_back(std::move(of));
  }
  return state;
}

}  // namespace apex::test
