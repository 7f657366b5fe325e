#pragma once

#include <ATen/core/Tensor.h>
#include <apex_cpp/amp/masters/former_masters.h>
#include <apex_cpp/amp/masters/grad_mark.h>
#include <apex_cpp/amp/masters/value_sample.h>
#include <apex_cpp/amp/tensors/seen_groups.h>
#include <apex_cpp/amp/tensors/weak_tensor_map.h>
#include <c10/util/ArrayRef.h>

#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

namespace apex::amp::detail {

/// A parameter that an optimizer trains, and what amp keeps beside it.
struct TrainedParam {
  at::Tensor param;       ///< the model's own
  at::Tensor master;      ///< FP32, in the optimizer's groups in its place; undefined for a native parameter
  at::Tensor aside;       ///< its gradient of earlier passes, while one runs
  at::Tensor waiting;     ///< the same for one that passes with delay_unscale have left scaled
  at::Tensor joined;      ///< that one, from when it was added to the pass's gradient until the block ends
  GradMark mark;          ///< of its gradient, when amp had taken it at the end of the last pass
  TensorTrace taken;      ///< of the master's gradient then, which has its values
  TensorTrace written;    ///< of the parameter, when it was its rounded master
  ValueSample sample;     ///< of its values then
  at::Tensor before;      ///< values of the master from before written ones were taken, which may be put back until a step
  TensorTrace copied;     ///< of the master, when the parameter was made from it and frozen
  TensorTrace after;      ///< of the master, when they were taken
  at::Tensor spare_grad;  ///< memory of a dropped master gradient that nobody else holds
  bool is_tied = false;   ///< it shares its memory with another parameter here, by `set_data`, as their masters do

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
  WeakTensorMap<GradMark> early_marks_;  // of parameters that are not here yet
};

}  // namespace apex::amp::detail
