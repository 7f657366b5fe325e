#pragma once
// One to three models, losses and optimizers, and the same training by hand: plain optimizers over copies with given gradients,
// without the steps that amp must skip. Gradients do not depend on the weights and are exact in every dtype, so both must agree
// bit for bit.
#include <apex_cpp/amp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/amp/support.h"

namespace apex::test::combinations {

using torch::Tensor;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;

/// `low` is 16-bit at O2, O3 and O5; `native` is float32 at O2 and O5, as a batch norm's weight is. The loss of input x is
/// sum((low + native) * x), so x is the gradient of both.
struct PairImpl : torch::nn::Module {
  PairImpl();
  Tensor forward(const Tensor& x);
  Tensor low, native;
};
TORCH_MODULE(Pair);

struct Kind {
  std::string name;
  std::function<OptimizerPtr(std::vector<Tensor>)> make;
};
inline std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }
/// torch's SGD and Adam, FusedSGD and FusedAdam, the latter two in both orders.
const std::vector<Kind>& kinds();

/// A kind of optimizer and a level.
using Case = std::tuple<Kind, std::string>;
inline std::string name_of(const ::testing::TestParamInfo<Case>& test) {
  return std::get<0>(test.param).name + "_" + std::get<1>(test.param);
}
inline bool has_masters(const std::string& level) { return level == "O2" || level >= "O5"; }
inline const auto kLevels = ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6");

/// Through torch::optim::Optimizer&, or the model's.
enum class Zero { base, base_in_place, model, model_in_place };
enum class Clip { none, value, norm };

struct Inject {
  int step, loss, model;
  bool into_low;
};

struct Plan {
  std::string level;
  int models = 1, losses = 1, optimizers = 1;
  bool own_scalers = false;  // loss_id = the loss's number, else 0
  Zero zero = Zero::base;
  bool delay_unscale = false;         // all passes but the last
  bool delay_overflow_check = false;  // all passes but the last
  Clip clip = Clip::none;             // after the last pass
  std::optional<Inject> inject;

  bool uses(int loss, int model) const;
  /// Optimizers are dealt out to models in turn.
  int optimizer_of(int model) const { return model % optimizers; }
  bool feeds(int loss, int optimizer) const;
  std::string describe() const;
};

/// Few bits, and a different one for every step, loss and model.
Tensor gradient(int step, int loss, int model);

/// Trains by the plan with amp and by hand; expects equal parameters, masters, model weights and loss scales.
void expect_trains_as_by_hand(const Kind& kind, const Plan& plan);

}  // namespace apex::test::combinations
