#pragma once
// Random programs: a set-up of amp, and the calls of a training loop.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/state_machine/state.h"

namespace apex::test {

/// The source of a program: 32 random bits a call, or what a fuzzer chose.
using Random = std::function<uint32_t()>;

inline const std::array<const char*, 6> kModelledLevels = {"O0", "O1", "O2", "O3", "O5", "O6"};

enum class OptimizerKind { sgd, fused_sgd, fused_sgd_in_fused_order };
/// The model's parameters 0-2 and 5 are cast by the level, 3, 4 and 6 are float32 and outside of the model.
/// Optimizer 0 starts with 0, 1, 3; optimizer 1 with 2, 4; parameters 5 and 6 can be added to either.
constexpr bool is_cast(int param) { return param <= 2 || param == 5; }

struct Config {
  std::string level;
  OptimizerKind kind = OptimizerKind::sgd;
  bool dynamic = true;
  double static_scale = 1;
  std::optional<double> min_scale;
  double max_scale = 65536;
  int64_t scale_window = 2000;
  int losses = 1;
  double momentum = 0;
  /// The smallest usable scale may be loaded. float32 does not hold its ratio to others, by which gradients that wait scaled
  /// are multiplied: so none do.
  bool smallest_scale = false;
};

struct Event {
  enum Kind {
    backward,        // a scale_loss block
    plain_backward,  // loss.backward() without amp, of parameters that have no master
    step,
    zero_grad,        // of the handle
    model_zero_grad,  // of the module; parameters outside of it are dropped by hand
    add_group,
    load_state,  // amp.load_state_dict
    save_state,
    materialize,  // amp.master_params
    initialize,   // the same model again, with new optimizers
    bystander,    // initialize of another model, which trains a step
    freeze,       // requires_grad_ of a parameter, off or on
  };
  Kind kind = backward;

  int optimizers = 1;  // bits: those listed by a block
  int optimizer = 0;   // of a step, zero_grad, add_group or materialize
  int loss = 0;
  bool delay_unscale = false;
  bool delay_overflow_check = false;
  bool throws = false;  // an exception leaves the block
  bool set_to_none = true;
  /// Of a backward pass: d loss / d parameter, undefined where the parameter takes no part.
  std::array<Gradient, kParams> derivatives;
  int param = 5;   // of add_group and freeze
  bool on = true;  // of freeze
  /// Of load_state: what the n-th saved scaler holds, or the last saved state where there is none; a foreign key after them.
  std::vector<std::pair<double, int64_t>> saved;
  bool foreign_key = false;
  std::optional<Config> again;  // of initialize
  bool keeps_handles = false;   // of initialize: those of the call before, which are not used; of bystander: its own
  std::optional<std::string> bystander_level;  // its level; of backward: it trains within the block
};

Config random_config(const std::string& level, Random& random);
std::vector<Event> random_events(const Config& config, Random& random);

std::string describe(const Config& config);
std::string describe(const Event& event);

}  // namespace apex::test
