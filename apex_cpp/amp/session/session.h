#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/amp/tensors/parameter_names.h>

#include "opt_levels/resolve.h"

namespace apex::amp {

namespace detail {

class OptimizerStash;

/// What one `initialize` call set up: the settings in force, the loss scalers, the names of the models' parameters and the
/// optimizers. Handles keep their session alive; the newest one is what `amp::state_dict` and its like speak of.
struct Session : std::enable_shared_from_this<Session> {
  explicit Session(opt_levels::Settings settings);

  opt_levels::Settings settings;
  std::deque<LossScaler> scalers;
  ParameterNames parameter_names;
  std::shared_ptr<CastRules> cast_rules;  // null where no operator is cast
  std::vector<std::weak_ptr<OptimizerStash>> optimizers;

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

/// The newest session, or null before the first `initialize`.
std::shared_ptr<Session> current_session();
void set_current_session(std::shared_ptr<Session> session);
/// The newest session. Errors: RuntimeError that names `caller` if `initialize` has not run.
Session& require_session(const char* caller);

}  // namespace detail

/// Drops the 16-bit copies of weights that O1 and O4 keep within an iteration. amp does so itself at the end of `scale_loss`
/// blocks, steps and evaluations; a program that writes to weights through `tensor.data()` at another time does it here.
void clear_cast_cache();

/// Properties in force after the newest `initialize`. Errors: RuntimeError before it.
const opt_levels::Properties& properties();

/// Scaler of one loss, `loss_id` in [0, num_losses). Errors: RuntimeError before `initialize`, IndexError out of range.
LossScaler& loss_scaler(int64_t loss_id = 0);

/// Number of loss scalers: `num_losses`, or 0 where amp was initialized with `enabled` false. Errors: as `properties`.
int64_t num_loss_scalers();

/// Forgets the newest `initialize`: `scale_loss` and `state_dict` ask for a new one, and threads cast no more. Handles made
/// before keep working with the scalers and the casts they were made with.
void reset();

}  // namespace apex::amp
