#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <optional>
#include <vector>

#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/amp/session/session.h>
#include <apex_cpp/amp/tensors/listed_once.h>
#include <apex_cpp/amp/tensors/seen_groups.h>

namespace apex::amp::detail {

/// Takes the parameters of an optimizer's groups into its table, and gives 16-bit ones their FP32 master there (MW-01..07,
/// APG-02). Frozen parameters stay as they are. Those that a program has taken out of the groups are forgotten; a master that
/// comes back, from here or from another optimizer, is its parameter's again.
class Adopter {
 public:
  /// What the session's optimizers know of a tensor as a master, present or former, or as the parameter of a former one.
  using KnownParamOf = std::function<std::optional<KnownParam>(const at::Tensor&)>;

  Adopter(const Session& session, MasterTable& table) : session_(session), table_(table) {}

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
  SeenGroups seen_;
  std::vector<at::Tensor> frozen_;  // those of `seen_` that are not in the table
  bool has_gone_ = false;           // parameters are in the table and in no group
  bool adopted_once_ = false;
  bool found_groups_ = false;
};

}  // namespace apex::amp::detail
