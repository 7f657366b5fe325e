#pragma once

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/custom_functions.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include "opt_levels/opt_level.h"
#include "opt_levels/resolve.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace apex::amp::detail {

/// What a session needs of one of its optimizers: its FP32 masters.
class MasterProvider {
 public:
  virtual ~MasterProvider() = default;
  /// Makes the masters of parameters that have none yet, such as before the first step. Errors: as
  /// `OptimizerStash::adopt_new_params`.
  virtual void make_masters() = 0;
  /// Drops saved master values that a load made obsolete.
  virtual void drop_obsolete_master_backups() const = 0;
  /// Adds the model's parameters that this optimizer trains, also before its first use, when it has no masters yet.
  virtual void add_trained(std::unordered_set<const at::TensorImpl*>& params) const = 0;
  /// The FP32 master of a model's parameter; undefined if this optimizer keeps none.
  virtual at::Tensor master_of(const at::Tensor& param) const = 0;
  /// The same for masters that the optimizer itself keeps (StepsMasters): a float32 copy, and a new value. `load_kept_master`
  /// returns false if there is none.
  virtual at::Tensor kept_master_of(const at::Tensor& param) const = 0;
  virtual bool load_kept_master(const at::Tensor& param, const at::Tensor& value) = 0;
  /// The program may have written to weights without changing their version counters.
  virtual void weights_were_written() = 0;
  /// A later `initialize` gave the model's parameters to another optimizer.
  virtual void retire() = 0;
  virtual bool is_retired() const = 0;
};

struct Session;
using Sessions = std::vector<std::shared_ptr<Session>>;

/// The state of one `initialize` call: settings, loss scalers, names of the models' parameters, optimizers. Handles keep their
/// session alive. `amp::state_dict` and other functions without a handle use the newest session.
struct Session : std::enable_shared_from_this<Session> {
  explicit Session(opt_levels::Settings settings);

  opt_levels::Settings settings;
  std::deque<LossScaler> scalers;
  std::shared_ptr<ParameterNames> parameter_names = std::make_shared<ParameterNames>();
  std::shared_ptr<CastRules> cast_rules;  // null if no operators are cast
  std::vector<std::weak_ptr<MasterProvider>> optimizers;
  CustomFunctions custom_functions;  // torch::autograd::Functions that got 16-bit tensors

  bool enabled() const { return settings.properties.enabled; }
  /// Whether the cast lists apply, as at O1 and O4.
  bool patches_functions() const { return enabled() && settings.properties.patch_torch_functions; }
  void clear_cast_cache() const;
  /// Of the recipe `delayed`; null with any other.
  std::shared_ptr<Float8History> float8_history() const { return cast_rules ? cast_rules->float8_history() : nullptr; }
  /// Of the first loss; 1 without loss scalers.
  double first_loss_scale() const { return scalers.empty() ? 1 : scalers.front().loss_scale(); }
  /// Number of overflows of all losses so far. Each skips a step; several passes of one step may overflow.
  int64_t overflows() const;
  bool has_masters() const { return settings.properties.master_weights.value_or(false); }
  /// The parameter's name in its model, or a description if it belongs to no model.
  std::string plain_name_of(const at::Tensor& parameter) const;
  /// The same for messages, with the name in quotes.
  std::string name_of(const at::Tensor& parameter) const;
  /// Makes the masters of all parameters, so that values can be loaded into both.
  void make_masters() const;
  /// Call it after values were loaded into masters.
  void drop_obsolete_master_backups() const;
  /// The FP32 master that this session's optimizers keep for `parameter`; undefined if there is none.
  at::Tensor master_of(const at::Tensor& parameter) const;
  /// The values of the master, also if the optimizer itself keeps it; undefined if there is none.
  at::Tensor master_values_of(const at::Tensor& parameter) const;
  /// Writes a float32 value to the master of `parameter`, if there is one. Where an optimizer itself keeps it, also to the
  /// parameter.
  void load_master(const at::Tensor& parameter, const at::Tensor& value) const;
  /// Errors: IndexError if `loss_id` is out of range.
  LossScaler& scaler(int64_t loss_id);

 private:
  /// Its optimizers that are alive and not retired.
  std::vector<std::shared_ptr<MasterProvider>> providers() const;
};

/// `own`, unless it is null, and every other session that may keep a master of one of these tensors: it has cast it, or its
/// optimizers were given it. Asks no optimizer, which other threads may use.
Sessions sessions_that_know(const std::vector<at::Tensor>& tensors, const std::shared_ptr<Session>& own);

/// Copies a value from a checkpoint into a parameter or buffer, rounded to its dtype, and into the FP32 master that each
/// of these sessions keeps for it: the next step would otherwise overwrite the parameter with the old master.
void assign(at::Tensor tensor, const at::Tensor& value, const Sessions& sessions);
/// The values of the master that one of these sessions keeps, as `Session::master_values_of`.
at::Tensor master_values_of(const at::Tensor& parameter, const Sessions& sessions);

/// Calls `load`, which writes values of a file into parameters, buffers and masters of these sessions. All masters are made
/// before it, and nothing that was kept of older values outlives it.
void load_values(const Sessions& sessions, const std::function<void()>& load);

/// The newest session, or null before the first `initialize`.
std::shared_ptr<Session> current_session();
void set_current_session(std::shared_ptr<Session> session);
/// The newest session. Errors: RuntimeError naming `caller` before `initialize`.
Session& require_session(const char* caller);
/// The newest session, with loss scalers. Errors: RuntimeError before `initialize` or after one with `enabled` false.
Session& require_enabled_session(const char* caller);

// A model may be initialized again with a new optimizer (BUG-07). amp therefore records which parameters and buffers it has
// cast, to tell such a model from one that the program made in 16 bits. Weak references only. Callable from any thread.

bool was_cast_by_amp(const at::Tensor& tensor);
/// The session that cast `tensor` last; null if there was none or it is gone.
std::shared_ptr<Session> session_that_cast(const at::Tensor& tensor);
/// Records all parameters and buffers of `module` as cast by `session`.
void remember_casts(const torch::nn::Module& module, const std::shared_ptr<Session>& session);
/// Records a parameter that joined the session's optimizers in 16 bits.
void remember_cast(const at::Tensor& param, const std::shared_ptr<Session>& session);
/// Casts tensors of `module` that an earlier `initialize` made 16-bit back to float32. Retires earlier optimizers that keep
/// masters of its parameters, and those that would make them at their first use for a parameter in `trained`, which the
/// optimizers of this call train, since both would write to the parameters: their next use is an error. One `to_float32` serves
/// all models of a call.
void undo_earlier_casts(torch::nn::Module& module, InPlaceCaster& to_float32,
                        const std::unordered_set<const at::TensorImpl*>& trained);
/// Drops the records of freed tensors.
void forget_dead_tensors();

// What amp prints on standard output (PRINT-*): nothing at verbosity 0, properties and skipped steps at verbosity 1.

/// Whether this process prints properties, true by default. Of several processes only rank 0 prints.
void set_printing(bool on);
/// Prints the level and its properties before and after overrides (PRINT-01).
void print_properties(const opt_levels::OptLevel& level, const opt_levels::Settings& settings);
/// "fp8 delayed, gradients e5m2, with convolutions"
std::string describe_float8(const opt_levels::Settings& settings);
/// Prints one line: how operators on 16-bit CPU tensors compute, and why.
void print_cpu_compute(const opt_levels::Settings& settings, c10::ScalarType type, bool in_float32, const std::string& reason);
/// Prints one line, once a process: how to switch on huge pages.
void print_huge_pages_hint(const opt_levels::Settings& settings);
/// Prints one line for a skipped step: loss, overflowed gradient, old and new loss scale (SL-12).
void print_skipped_step(const Session& session, const Overflow& overflow, double scale_now);
/// Prints one line if the newest `initialize` has verbosity above 0 and this process prints properties.
void print_line(const std::string& text);

}  // namespace apex::amp::detail
