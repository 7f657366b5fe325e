#pragma once
// Small training programs, each written once and run without amp and with its three lines at every level. A program is a
// generic lambda that takes its run: `amp.initialize`, `amp.scale_loss` and the rest are apex::amp's in one run, and the
// equivalent code without amp in the other.
#include <apex_cpp/amp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/amp/support.h"

namespace apex::test::programs {

using torch::Tensor;

/// The results that a program reports.
class Report {
 public:
  /// A figure that training brings down. The first and the last one are compared.
  void log(double figure) { figures_.push_back(figure); }
  void log(const Tensor& figure) { log(figure.item<double>()); }
  double first() const { return figures_.empty() ? NAN : figures_.front(); }
  double last() const { return figures_.empty() ? NAN : figures_.back(); }

 private:
  std::vector<double> figures_;
};

/// The program without amp.
class Plain : public Report {
 public:
  struct Loss {
    Tensor loss;
    const Tensor& tensor() const { return loss; }
    void backward(const Tensor& gradient = {}, std::optional<bool> retain_graph = std::nullopt) const {
      loss.backward(gradient, retain_graph);
    }
  };

  template <class Models, class Optimizers>
  std::pair<Models, Optimizers> initialize(Models&& models, Optimizers&& optimizers, const amp::InitializeOptions& = {}) {
    return {std::forward<Models>(models), std::forward<Optimizers>(optimizers)};
  }
  Loss scale_loss(const Tensor& loss, const amp::OptimizerList&, const amp::ScaleLossOptions& = {}) { return {loss}; }
  void backward(const Tensor& loss, const amp::OptimizerList&, const amp::ScaleLossOptions& = {}) { loss.backward(); }
  double clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm);
  double loss_scale() const { return 1; }
  void output(const Tensor&) {}
  struct [[maybe_unused]] Guard {};
  Guard enable_casts() { return {}; }
};

/// The program with amp at a level. Looks, too, whether every dtype is what the level promises.
class WithAmp : public Report {
 public:
  explicit WithAmp(std::string level) : level_(std::move(level)) {}

  template <class Models, class Optimizers>
  auto initialize(Models&& models, Optimizers&& optimizers, amp::InitializeOptions options = {}) {
    watch(models);
    return amp::initialize(std::forward<Models>(models), std::forward<Optimizers>(optimizers), level_, options.verbosity(0));
  }
  auto scale_loss(const Tensor& loss, const amp::OptimizerList& optimizers, const amp::ScaleLossOptions& options = {}) {
    return amp::scale_loss(loss, optimizers, options);
  }
  void backward(const Tensor& loss, const amp::OptimizerList& optimizers, const amp::ScaleLossOptions& options = {});
  double clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm) {
    return amp::clip_grad_norm_(optimizer, max_norm);
  }
  double loss_scale() const { return amp::loss_scaler().loss_scale(); }
  amp::enable_casts enable_casts() { return {}; }
  /// The model's output dtype: FP32 if the level decides it, and not an operator's cast list.
  void output(const Tensor& output) const;

 private:
  template <class Model>
  void watch(Model& model) {
    if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
      modules_.push_back({&model, /*is_shared=*/false, {}});
    } else {
      modules_.push_back({&*model, /*is_shared=*/true, model->weak_from_this()});
    }
  }
  template <class... Models>
  void watch(std::tuple<Models&...>& models) {
    std::apply([this](auto&... each) { (watch(each), ...); }, models);
  }
  template <class Model>
  void watch(std::vector<Model>& models) {
    for (auto& each : models) watch(each);
  }
  void expect_promised_dtypes(const amp::OptimizerList& optimizers, bool unscaled) const;

  std::string level_;
  struct Watched {
    torch::nn::Module* module;
    bool is_shared;
    std::weak_ptr<torch::nn::Module> owners;
  };
  std::vector<Watched> modules_;
};

/// Adam with an epsilon that FP16 has: torch's own is zero there, and O3 divides by it.
inline torch::optim::AdamOptions adam(double rate) { return torch::optim::AdamOptions(rate).eps(1e-4); }

/// Two linear layers.
struct LayersImpl : torch::nn::Module {
  LayersImpl(int64_t in, int64_t hidden, int64_t out) {
    first = register_module("first", torch::nn::Linear(in, hidden));
    second = register_module("second", torch::nn::Linear(hidden, out));
  }
  Tensor forward(const Tensor& x) { return second(torch::leaky_relu(first(x), 0.2)); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Layers);

/// Points around (2, -1), and how far from there others are on average.
Tensor real_points();
Tensor distance_from_real(const Tensor& points);

/// The usual loop: `loss_of()` is differentiated and reported, `steps` times.
template <class Amp, class Optimizer, class LossOf>
void train(Amp& amp, Optimizer& opt, int steps, const LossOf& loss_of) {
  for (int step = 0; step < steps; ++step) {
    opt.zero_grad();
    const Tensor loss = loss_of();
    amp.log(loss);
    amp.backward(loss, opt);
    opt.step();
  }
}

/// One program in both forms.
struct Program {
  template <class Body>
  /* implicit */ Program(Body body) : plain(body), with_amp(body) {}
  std::function<void(Plain&)> plain;
  std::function<void(WithAmp&)> with_amp;
};

const std::vector<std::string> kAllLevels = {"O0", "O1", "O2", "O3", "O4", "O5", "O6"};

/// Expects the program to train at each level as it does without amp: its last figure lies where plain runs end, and far from
/// where they start. At O0 the figure is that of the plain run, to the bit, unless `exact` is false.
void expect_trains_as_without_amp(const Program& program, const std::vector<std::string>& levels = kAllLevels,
                                  bool exact = true);

}  // namespace apex::test::programs
