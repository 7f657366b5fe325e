#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/amp/session/session.h>
#include <apex_cpp/amp/tensors/listed_once.h>

namespace apex::amp::detail {

/// Takes the parameters of an optimizer's groups into its table, and gives 16-bit ones their FP32 master there (MW-01..07,
/// APG-02). Frozen parameters stay as they are.
class Adopter {
 public:
  Adopter(const Session& session, MasterTable& table) : session_(session), table_(table) {}

  /// Sorts the parameters that are new since the last call, or no longer frozen. Errors, before anything is changed: TypeError
  /// for a parameter to be trained that is neither 16-bit nor FP32, RuntimeError for one whose master another optimizer keeps,
  /// ValueError for one in two groups.
  void adopt_new_params(torch::optim::Optimizer& optimizer);
  /// Errors: as `adopt_new_params` would, plus RuntimeError for a parameter that the optimizer has already.
  void check_new_group(const std::vector<at::Tensor>& params) const;
  /// Whether the optimizer had groups when they were looked at.
  bool found_groups() const { return found_groups_; }

 private:
  void check_can_adopt(const at::Tensor& param) const;
  bool is_frozen(const at::Tensor& param) const;
  std::vector<at::Tensor*> new_params(torch::optim::Optimizer& optimizer);
  void list_params_once(ParamGroups& groups);
  void adopt(torch::optim::Optimizer& optimizer, at::Tensor& param);
  void give_master(torch::optim::Optimizer& optimizer, at::Tensor& param);

  const Session& session_;
  MasterTable& table_;
  ListedOnce listed_once_;
  bool adopted_once_ = false;
  bool found_groups_ = false;
};

}  // namespace apex::amp::detail
