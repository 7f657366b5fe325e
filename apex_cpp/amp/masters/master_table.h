#pragma once

#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/amp/tensors/tensor_version.h>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

namespace apex::amp::detail {

/// The last gradients that amp read, to detect later changes by the program. Set at the end of a pass.
struct LastGrads {
  GradSnapshot model;    ///< the model parameter's gradient
  TensorVersion master;  ///< the master's gradient that was computed from it
};

/// A model's parameter that has or had a master, and the last gradients of both that amp read.
struct KnownParam {
  at::Tensor param;
  LastGrads last_grads;
};

/// Masters that a program took out of an optimizer's groups. The program may put the master or its parameter back, into this or
/// another optimizer. Does not keep the tensors alive.
class FormerMasters {
 public:
  void add(const at::Tensor& param, const at::Tensor& master, LastGrads last_grads);
  /// Finds an entry by its parameter or its master; none if the parameter is gone.
  std::optional<KnownParam> find(const at::Tensor& tensor) const;

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Record {
    Weak param;
    LastGrads last_grads;
  };

  WeakTensorMap<Record> records_;  // two entries each: by parameter and by master
};

/// Gradients of one model parameter from earlier passes, removed from the model while a pass runs.
struct EarlierGrads {
  at::Tensor finished;  ///< from passes that have ended and were not delayed
  at::Tensor delayed;   ///< from passes with delay_unscale, still scaled
  at::Tensor joined;    ///< the former `delayed`, from when it was added to the pass's gradient until the block ends
};

/// A parameter that an optimizer trains, with its master and their states.
///
/// State of the weight: equal to the rounded master (`synced_weight` has its version), or edited by the program.
/// State of the gradient: in the model, or in `earlier_grads` while a pass runs; `last_grads` records what amp has read.
struct TrainedParam {
  at::Tensor param;             ///< the model's parameter
  c10::ScalarType dtype;        ///< of `param` when it got its master; the program may convert it since
  at::Tensor master;            ///< FP32, replaces `param` in the optimizer's groups; undefined for a native parameter
  bool is_tied = false;         ///< `set_data` tied `param` to another parameter of this table; their masters share memory too
  EarlierGrads earlier_grads;   ///< gradients removed from the model while a pass runs
  LastGrads last_grads;         ///< gradients at the end of the last pass
  TensorVersion added_grad;     ///< the gradient that a native parameter had when it was added, until a pass begins
  WeightRecord synced_weight;   ///< `param` when it was last equal to the rounded master; empty if it was edited
  TensorVersion synced_master;  ///< of the master, when it and `param` were last made equal
  TensorVersion loaded_master;  ///< of the master, when a load had written it
  bool may_be_edited = false;   ///< a write to `param` may not show
  at::Tensor backup;            ///< the master's FP32 values before edits, until the next step; undefined if nothing is kept
  TensorVersion frozen_copy;    ///< of the master, when it was last copied to a frozen `param`
  at::Tensor spare_grad;        ///< memory of a dropped master gradient, for reuse
  const void* seen_at = nullptr;  ///< where `param` was when ties were last looked for: an address alone

  bool has_master() const { return master.defined(); }
  /// Whether `set_data` may have tied `param` to another parameter, or untied it, since ties were last looked for.
  bool has_moved() const { return param.const_data_ptr() != seen_at; }
  /// What the optimizer steps: the master, or the parameter itself.
  const at::Tensor& stepped() const { return has_master() ? master : param; }
  /// Copies the program's edits of `param` since the last step into the master. Only elements that differ from the rounded
  /// master are copied; the others keep FP32 precision. No synchronisation. `may_be_restored`: keeps a backup of the master,
  /// one FP32 copy, until `mark_synced`; where the program restores the rounded value of the backup, the master gets the
  /// backup's value back.
  void update_master_from_edits(bool may_be_restored = true);
  /// Whether the master was written, by the program or a load, since it and `param` were made equal. Writes through `data()`
  /// do not show.
  bool master_was_written() const { return !synced_master.matches(master); }
  /// Records that `param` equals the rounded master, or is about to be overwritten with it. Drops the backup.
  void mark_synced();
  /// Records that a load wrote the master: what the program writes to `param` from now on counts for more.
  void mark_loaded() { loaded_master = TensorVersion(master); }
  /// Records that the program may have edited `param`; the next `update_master_from_edits` compares all values, unless the
  /// program has written the master since, and no write to `param` shows.
  void mark_edited() { may_be_edited = true; }
  /// Drops the backup: the edits can no longer be undone.
  void drop_backup() { backup.reset(); }
  /// Whether `param` is frozen and already has the master's current values.
  bool is_frozen_copy() const { return !param.requires_grad() && frozen_copy.matches(master); }
  /// Before a step: a gradient may change the master without a new version, as torch::optim::SGD writes through data().
  void expect_step() {
    if (master.grad().defined()) frozen_copy = {};
  }
  /// Uninitialized memory for the master's gradient.
  at::Tensor new_master_grad();
  void drop_master_grad();
};

/// The parameters that one optimizer trains, without duplicates, keyed by TensorImpl.
///
/// "Model params" are the 16-bit parameters that have a master. "Native" parameters are updated directly; without master
/// weights all parameters are native.
class MasterTable {
 public:
  using Params = c10::ArrayRef<TrainedParam*>;

  MasterTable() = default;
  MasterTable(const MasterTable&) = delete;
  MasterTable& operator=(const MasterTable&) = delete;

  /// Adds a new parameter with its master, undefined for a native parameter.
  TrainedParam& add(const at::Tensor& param, const at::Tensor& master);
  /// The entries that the groups hold neither by the model's parameter nor by the master.
  std::vector<TrainedParam*> not_in(const ParamGroups& groups) const;
  /// Removes the entries; their masters become former masters.
  void forget(const std::vector<TrainedParam*>& gone);

  /// Marks the current gradient as pre-existing; the next unscale ignores it (MW-06, APG-02).
  void mark_grad_as_preexisting(const at::Tensor& param);

  /// Finds an entry by the model's parameter, or by the tensor that the optimizer steps; null if absent.
  TrainedParam* find(const at::Tensor& param) const;
  TrainedParam* find_stepped(const at::Tensor& tensor) const;
  /// Another entry with a master whose parameter is tied to `param` by `set_data`; null if there is none.
  TrainedParam* find_tied(const at::Tensor& param) const;
  /// Lets masters share memory as their parameters do, which `set_data` may have tied or untied. Compares addresses alone
  /// unless a parameter has moved.
  void match_ties() const;
  /// Gives masters the memory layout of their parameters, which `set_data` may have changed. Kernels walk the memory of both
  /// together.
  void match_layouts() const;
  /// Finds a parameter by its current master, its former master, or, if it has a former master, by itself.
  std::optional<KnownParam> known_param(const at::Tensor& tensor) const;

  /// All entries: first model params, then native parameters, each in the order they were added.
  Params all() const { return params_; }
  Params with_masters() const { return all().slice(0, num_masters_); }
  Params native() const { return all().slice(num_masters_); }
  /// The entries with masters in the order of the optimizer's groups, without duplicates.
  std::vector<TrainedParam*> with_masters_in(const ParamGroups& groups) const;

 private:
  using Index = std::unordered_map<const at::TensorImpl*, TrainedParam*>;
  static TrainedParam* find_in(const Index& index, const at::Tensor& tensor);
  static void drop_from(Index& index, const at::Tensor& tensor, const TrainedParam* entry);

  std::list<TrainedParam> entries_;  // a list keeps their addresses valid
  std::vector<TrainedParam*> params_;
  size_t num_masters_ = 0;
  Index by_param_, by_stepped_;
  FormerMasters former_;
  WeakTensorMap<GradSnapshot> preexisting_grads_;  // of parameters that are not in the table yet
};

/// Adds the parameters of an optimizer's groups to its table, and replaces 16-bit parameters in the groups by FP32 masters
/// (MW-01..07, APG-02). Frozen parameters stay unchanged. Parameters that the program has removed from the groups are removed
/// from the table. A master that returns to a group, of this or another optimizer, belongs to its parameter again.
class MasterWeightInit {
 public:
  /// Looks up a tensor in the tables of all the session's optimizers, as `MasterTable::known_param`.
  using KnownParamOf = std::function<std::optional<KnownParam>(const at::Tensor&)>;

  MasterWeightInit(const Session& session, MasterTable& table) : session_(session), table_(table) {}

  /// Whether the groups have changed since the last `adopt_new_params`, a frozen parameter was unfrozen, or the table has
  /// parameters that are in no group. If nothing has changed, this only compares addresses.
  bool is_due(const ParamGroups& groups) const;
  /// Adds parameters that are new or newly unfrozen since the last call. `once_trained`: parameters that get masters even if
  /// they are frozen now. Errors, before any change: TypeError for a trained parameter that is neither 16-bit nor FP32,
  /// RuntimeError for a parameter whose master another optimizer keeps, ValueError for a parameter in two groups.
  void adopt_new_params(torch::optim::Optimizer& optimizer, const KnownParamOf& known_param_of,
                        const std::vector<at::Tensor>& once_trained);
  /// Removes parameters that are in no group any more, and returns them. Optimizer state under a master's key moves back to the
  /// parameter's key.
  std::vector<at::Tensor> forget_gone_params(torch::optim::Optimizer& optimizer);
  /// Errors: as `adopt_new_params`, and RuntimeError for a parameter that the optimizer already has.
  void check_new_group(const std::vector<at::Tensor>& params) const;
  /// Whether the optimizer had groups at an `adopt_new_params`.
  bool found_groups() const { return found_groups_; }

 private:
  /// A tensor in a group that is to be added. `known`: the result of `KnownParamOf`.
  struct NewParam {
    at::Tensor& place;
    std::optional<KnownParam> known;
    const at::Tensor& param() const { return known ? known->param : place; }
    bool is_master() const { return known && !known->param.is_same(place); }
  };
  void check_can_adopt(const at::Tensor& param) const;
  bool is_frozen(const at::Tensor& param) const;
  std::vector<NewParam> new_params(ParamGroups& groups, const KnownParamOf& known_param_of,
                                   const std::vector<at::Tensor>& once_trained);
  void list_params_once(ParamGroups& groups);
  void adopt(torch::optim::Optimizer& optimizer, NewParam& param);
  void give_master(torch::optim::Optimizer& optimizer, at::Tensor& param);
  void take_master_back(torch::optim::Optimizer& optimizer, const NewParam& param);
  void remember(const ParamGroups& groups);

  const Session& session_;
  MasterTable& table_;
  ParamGroupsSnapshot seen_;
  std::vector<at::Tensor> frozen_;  // parameters in the groups that are not in the table
  bool has_gone_ = false;           // the table has parameters that are in no group
  bool adopted_once_ = false;
  bool found_groups_ = false;
};

}  // namespace apex::amp::detail
