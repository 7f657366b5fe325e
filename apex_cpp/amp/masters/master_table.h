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

/// A model's parameter that has or had a master, and what amp knew of its gradient.
struct KnownParam {
  at::Tensor param;
  GradSnapshot mark;
};

/// Masters whose parameters were taken out of an optimizer's groups: a program may put either back, there or into another
/// optimizer. Holds none of the tensors.
class FormerMasters {
 public:
  void add(const at::Tensor& param, const at::Tensor& master, GradSnapshot mark);
  /// By the parameter or the master, as long as the parameter is there.
  std::optional<KnownParam> find(const at::Tensor& tensor) const;

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Record {
    Weak param;
    GradSnapshot mark;
  };

  WeakTensorMap<Record> records_;  // by either
};

/// A parameter that an optimizer trains, and what amp keeps beside it.
struct TrainedParam {
  at::Tensor param;         ///< the model's own
  at::Tensor master;        ///< FP32, in the optimizer's groups in its place; undefined for a native parameter
  at::Tensor aside;         ///< its gradient of earlier passes, while one runs
  at::Tensor waiting;       ///< the same for one that passes with delay_unscale have left scaled
  at::Tensor joined;        ///< that one, from when it was added to the pass's gradient until the block ends
  GradSnapshot mark;        ///< of its gradient, when amp had taken it at the end of the last pass
  TensorVersion taken;      ///< of the master's gradient then, which has its values
  TensorVersion written;    ///< of the parameter, when it was its rounded master
  ValueFingerprint sample;  ///< of its values then
  at::Tensor before;        ///< values of the master from before written ones were taken, which may be put back until a step
  TensorVersion copied;     ///< of the master, when the parameter was made from it and frozen
  TensorVersion after;      ///< of the master, when they were taken
  at::Tensor spare_grad;    ///< memory of a dropped master gradient that nobody else holds
  bool is_tied = false;     ///< it shares its memory with another parameter here, by `set_data`, as their masters do

  bool has_master() const { return master.defined(); }
  /// What the optimizer steps: the master, or the parameter itself.
  const at::Tensor& stepped() const { return has_master() ? master : param; }
  /// Brings what the program has written into the model's parameter since the last step to the master, element by element where
  /// the parameter is not the rounded master: the others keep their precision. No synchronisation. `can_be_put_back`: the
  /// program may write what was there before again, as after an evaluation with other weights. The master's values of before
  /// are kept for it, one FP32 copy, until `mark_written`; elements whose rounded ones come back get theirs.
  void take_written_values(bool can_be_put_back = true);
  /// The parameter is the rounded master, or is to become it.
  void mark_written();
  /// What was written is there to stay.
  void forget_before();
  /// The parameter is frozen, and its master has not been written to since it was last copied.
  bool is_copied() const { return !param.requires_grad() && copied.still(master); }
  /// Memory for a gradient of the master, with any values in it.
  at::Tensor new_master_grad();
  void drop_master_grad();

 private:
  void note_written();
};

/// The parameters that one optimizer trains, each once, found by TensorImpl.
///
/// "Model params" are the 16-bit parameters that have a master; "native" ones are FP32 and are updated directly. Without master
/// weights all parameters are native.
class MasterTable {
 public:
  using Params = c10::ArrayRef<TrainedParam*>;

  MasterTable() = default;
  MasterTable(const MasterTable&) = delete;
  MasterTable& operator=(const MasterTable&) = delete;

  /// A parameter that is not here yet, with its master, undefined for a native one.
  TrainedParam& add(const at::Tensor& param, const at::Tensor& master);
  /// Those that the groups hold neither as the model's own nor as what the optimizer steps.
  std::vector<TrainedParam*> not_in(const ParamGroups& groups) const;
  /// They go with what is kept beside them; their masters become former ones.
  void forget(const std::vector<TrainedParam*>& gone);

  /// The parameter's gradient of now is known, and no pass's: where there are masters it counts no more (MW-06, APG-02).
  void set_aside_grad_of(const at::Tensor& param);

  /// By the model's own parameter, and by what the optimizer steps; null if it is not here.
  TrainedParam* find(const at::Tensor& param) const;
  TrainedParam* find_stepped(const at::Tensor& tensor) const;
  /// One with a master whose parameter `set_data` has tied to `param`; null if there is none.
  TrainedParam* find_tied(const at::Tensor& param) const;
  /// By a master that is here, or by a former one or its parameter.
  std::optional<KnownParam> known_param(const at::Tensor& tensor) const;

  /// All of them, in the order in which they came: model params, then native ones.
  Params all() const { return params_; }
  Params with_masters() const { return all().slice(0, num_masters_); }
  Params native() const { return all().slice(num_masters_); }
  /// Those with masters in the order of the optimizer's groups, each once.
  std::vector<TrainedParam*> with_masters_in(const ParamGroups& groups) const;

 private:
  using Index = std::unordered_map<const at::TensorImpl*, TrainedParam*>;
  static TrainedParam* find_in(const Index& index, const at::Tensor& tensor);
  static void drop_from(Index& index, const at::Tensor& tensor, const TrainedParam* entry);

  std::list<TrainedParam> entries_;  // their addresses stay
  std::vector<TrainedParam*> params_;
  size_t num_masters_ = 0;
  Index by_param_, by_stepped_;
  FormerMasters former_;
  WeakTensorMap<GradSnapshot> early_marks_;  // of parameters that are not here yet
};

/// Takes the parameters of an optimizer's groups into its table, and gives 16-bit ones their FP32 master there (MW-01..07,
/// APG-02). Frozen parameters stay as they are. Those that a program has taken out of the groups are forgotten; a master that
/// comes back, from here or from another optimizer, is its parameter's again.
class MasterWeightInit {
 public:
  /// What the session's optimizers know of a tensor as a master, present or former, or as the parameter of a former one.
  using KnownParamOf = std::function<std::optional<KnownParam>(const at::Tensor&)>;

  MasterWeightInit(const Session& session, MasterTable& table) : session_(session), table_(table) {}

  /// Whether the groups hold other tensors than at the last call of `adopt_new_params`, or one that is no longer frozen, or the
  /// table has parameters that are in no group. Compares addresses where nothing has changed.
  bool is_due(const ParamGroups& groups) const;
  /// Sorts the parameters that are new since the last call, or no longer frozen. Errors, before anything is changed: TypeError
  /// for a parameter to be trained that is neither 16-bit nor FP32, RuntimeError for one whose master another optimizer keeps,
  /// ValueError for one in two groups. `once_trained`: parameters that get their masters although they may be frozen now.
  void adopt_new_params(torch::optim::Optimizer& optimizer, const KnownParamOf& known_param_of,
                        const std::vector<at::Tensor>& once_trained);
  /// Forgets parameters that are in no group any more, and returns them. State that the optimizer still has under a master's
  /// key goes back to its parameter's.
  std::vector<at::Tensor> forget_gone_params(torch::optim::Optimizer& optimizer);
  /// Errors: as `adopt_new_params` would, plus RuntimeError for a parameter that the optimizer has already.
  void check_new_group(const std::vector<at::Tensor>& params) const;
  /// Whether the optimizer had groups when they were looked at.
  bool found_groups() const { return found_groups_; }

 private:
  /// A tensor of a group that is to be taken in. `known`: as `KnownParamOf` says.
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
  std::vector<at::Tensor> frozen_;  // those of `seen_` that are not in the table
  bool has_gone_ = false;           // parameters are in the table and in no group
  bool adopted_once_ = false;
  bool found_groups_ = false;
};

}  // namespace apex::amp::detail
