#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/custom_functions.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/amp/session/keeps_masters.h>
#include <apex_cpp/amp/tensors/parameter_names.h>

#include "opt_levels/resolve.h"

namespace apex::amp::detail {

/// What one `initialize` call set up: the settings in force, the loss scalers, the names of the models' parameters and the
/// optimizers. Handles keep their session alive; the newest one is what `amp::state_dict` and its like speak of.
struct Session : std::enable_shared_from_this<Session> {
  explicit Session(opt_levels::Settings settings);

  opt_levels::Settings settings;
  std::deque<LossScaler> scalers;
  std::shared_ptr<ParameterNames> parameter_names = std::make_shared<ParameterNames>();
  std::shared_ptr<CastRules> cast_rules;  // null where no operator is cast
  std::vector<std::weak_ptr<KeepsMasters>> optimizers;
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

}  // namespace apex::amp::detail
