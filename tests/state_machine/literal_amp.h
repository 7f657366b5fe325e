#pragma once
// Apex's loss scaling, master weights and skipped steps, written rule by rule on plain numbers. It shares no code with the
// library. Rules in which the library repairs Apex are marked PORT.
#include <optional>
#include <vector>

#include "tests/state_machine/events.h"

namespace apex::test {

class LiteralAmp {
 public:
  explicit LiteralAmp(const Config& config);

  void apply(const Event& event);
  const State& state() const { return state_; }

 private:
  enum class Type { half, bfloat16, single };
  struct Skip {
    int loss_id;
    double scale_before;
  };
  /// An optimizer with its stash (OPT-02).
  struct Optimizer {
    std::vector<int> params;                // of its groups
    std::array<bool, kParams> is_sorted{};  // by lazy init
    bool lazy_init_called = false;
    std::vector<int> halves, floats;
    std::array<Gradient, kParams> stash;
    bool params_have_scaled_gradients = false;
    double waiting_scale = 1;               // apex_cpp: the scale of those gradients
    std::array<Gradient, kParams> waiting;  // them, for the time of a later pass
    std::optional<Skip> skip;               // already_patched
    double most_recent_scale = 1;
    bool scale_set_by_backward = false;
    bool materialized = false;
    // PORT: a parameter that is added after a block must not bring a gradient, which may carry the block's scale.
    double block_scale = 1;
    bool after_block = false;           // until a step or zero_grad
    std::array<bool, kParams> added{};  // has the gradient with which it was added
  };

  // Set-up.
  Type type_of(int param) const;
  bool in_fused_order(const Optimizer& optimizer) const;
  void lazy_init(Optimizer& optimizer);

  // Events.
  void backward(const Event& event);
  void accumulate(int param, const Gradient& derivative, double scale);
  void prepare(Optimizer& optimizer);
  void follow_model(const Optimizer& optimizer);
  void put_waiting_aside(Optimizer& optimizer);
  void join_waiting(Optimizer& optimizer, double scale);
  void abandon(Optimizer& optimizer);
  void end_block(const Event& event);
  void step(int index);
  bool carries_scale(const Optimizer& optimizer) const;
  bool added_with_scaled_gradient(const Optimizer& optimizer) const;
  void step_param(int param, Weight& weight, Type type, const Gradient& grad, double factor);
  void zero_grad(Optimizer& optimizer, bool set_to_none);
  void model_zero_grad(bool set_to_none);
  void add_group(Optimizer& optimizer, int param);
  void load_state(const Event& event);
  void materialize(Optimizer& optimizer);
  void initialize_again(const Config& config);

  // Unscaling and the scaler.
  void post(Optimizer& optimizer, const ScalerState& scaler);
  void post_masters(Optimizer& optimizer, const ScalerState& scaler);
  void post_models_are_masters(Optimizer& optimizer, const std::vector<int>& params, const ScalerState& scaler);
  void post_fused_order(Optimizer& optimizer, const ScalerState& scaler);
  Values scaled(const Values& in, double factor, Type out);
  Values axpby(double a, const Values& x, double b, const Values& y, Type out);
  bool update_scale(ScalerState& scaler);
  void move(ScalerState& scaler, double scale, char change);
  void remember_model_grads(const Optimizer& optimizer);
  bool takes_part(const Event& event, int param) const;

  template <class F>
  void each_listed(const Event& event, const F& f) {
    for (int i = 0; i < kOptimizers; ++i) {
      if (event.optimizers & (1 << i)) f(optimizers_[i], state_.steps[i]);
    }
  }

  Config config_;
  State state_;
  std::array<Optimizer, kOptimizers> optimizers_;
  std::array<bool, kParams> has_momentum_{};
  // PORT: a zero_grad of the module reaches the masters before they are used.
  std::array<bool, kParams> marked_{}, zeroed_{};
  std::array<bool, kParams> frozen_{};
  std::optional<std::vector<std::pair<double, int64_t>>> saved_;
  bool is_newest_ = true;  // apex_cpp: state_dict and load_state_dict are the newest call's
  bool overflow_ = false;  // the device flag
};

/// The value in the precision of float16 or bfloat16, to the nearest, ties to even.
float round_to_half(double value);
float round_to_bfloat16(double value);

}  // namespace apex::test
