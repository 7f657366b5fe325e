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
#include <memory>
#include <string>
#include <vector>

namespace apex::amp::detail {

/// What a session knows of one of its optimizers: the masters that it keeps.
class MasterProvider {
 public:
  virtual ~MasterProvider() = default;
  /// The FP32 master of a model's parameter; undefined if it has none here.
  virtual at::Tensor master_of(const at::Tensor& param) const = 0;
  /// The program wrote to weights in ways that leave no trace.
  virtual void weights_were_written() = 0;
  /// A later `initialize` gave the model's parameters to another optimizer.
  virtual void retire() = 0;
};

/// What one `initialize` call set up: the settings in force, the loss scalers, the names of the models' parameters and the
/// optimizers. Handles keep their session alive; the newest one is what `amp::state_dict` and its like speak of.
struct Session : std::enable_shared_from_this<Session> {
  explicit Session(opt_levels::Settings settings);

  opt_levels::Settings settings;
  std::deque<LossScaler> scalers;
  std::shared_ptr<ParameterNames> parameter_names = std::make_shared<ParameterNames>();
  std::shared_ptr<CastRules> cast_rules;  // null where no operator is cast
  std::vector<std::weak_ptr<MasterProvider>> optimizers;
  CustomFunctions custom_functions;  // that were given 16-bit tensors

  bool enabled() const { return settings.properties.enabled; }
  /// Operators are cast by lists, as at O1 and O4.
  bool patches_functions() const { return enabled() && settings.properties.patch_torch_functions; }
  void clear_cast_cache() const;
  bool has_masters() const { return settings.properties.master_weights.value_or(false); }
  /// The parameter's name in its model, or a description of one that is in no model.
  std::string plain_name_of(const at::Tensor& parameter) const;
  /// The same for messages: a name stands in quotes.
  std::string name_of(const at::Tensor& parameter) const;
  /// The FP32 master that an optimizer of this session keeps for `parameter`; undefined if there is none.
  at::Tensor master_of(const at::Tensor& parameter) const;
  /// Errors: IndexError naming the id and the number of scalers.
  LossScaler& scaler(int64_t loss_id);
};

/// Writes what a checkpoint has into a parameter or buffer, rounded to its dtype, and into the FP32 master that `session` keeps
/// for it; without the latter the next step would bring back the weight from before. `session` may be null.
void assign(at::Tensor tensor, const at::Tensor& value, const Session* session);

/// The newest session, or null before the first `initialize`.
std::shared_ptr<Session> current_session();
void set_current_session(std::shared_ptr<Session> session);
/// The newest session. Errors: RuntimeError that names `caller` if `initialize` has not run.
Session& require_session(const char* caller);
/// The same where it has loss scalers. Errors: also RuntimeError after `initialize` with `enabled` false.
Session& require_enabled_session(const char* caller);

struct Session;

// A model that `initialize` has cast may be initialized again, with a new optimizer (BUG-07). amp therefore remembers which
// parameters and buffers it cast, to tell such a model from one that came in 16 bits. Weak references only; safe from any
// thread.

bool was_cast_by_amp(const at::Tensor& tensor);
/// The session that did so last; null if there was none, or if it is gone.
std::shared_ptr<Session> session_that_cast(const at::Tensor& tensor);
/// Remembers all parameters and buffers of a model that `session` casts.
void remember_casts(const torch::nn::Module& module, const std::shared_ptr<Session>& session);
/// Makes float32 again what amp cast in the model, and retires the optimizers of earlier calls that keep masters of its
/// parameters: these would write over the new ones, so their next use is an error. `to_float32` is for all models of a call.
void undo_earlier_casts(torch::nn::Module& module, CastsInPlace& to_float32);
/// Drops what is remembered of tensors that are gone.
void forget_dead_tensors();

}  // namespace apex::amp::detail

// What amp tells on standard output, by verbosity (PRINT-*): 0 nothing, 1 the properties and skipped steps.
namespace apex::amp::detail {

/// Whether this process tells properties (it does): of several processes, the first alone does.
void let_print_properties(bool on);
/// The level, its properties before and after overrides (PRINT-01).
void print_properties(const opt_levels::OptLevel& level, const opt_levels::Settings& settings);
/// One line that tells how operators on 16-bit CPU tensors compute, and why.
void print_cpu_compute(const opt_levels::Settings& settings, c10::ScalarType type, bool in_float32, const std::string& reason);
/// One line, once a process: how to switch on huge pages.
void print_huge_pages_hint(const opt_levels::Settings& settings);
/// One line for a step that was skipped: the loss, the gradient that overflowed and the scale before and from now on (SL-12).
void print_skipped_step(const Session& session, const Overflow& overflow, double scale_now);
/// One line, with the verbosity of the newest `initialize` and where properties are told.
void print_line(const std::string& text);

}  // namespace apex::amp::detail
