#include <apex_cpp/amp/masters/overflow_search.h>

#include <apex_cpp/amp/statistics/statistics.h>
#include <apex_cpp/amp/tensors/grad_sync.h>
#include <apex_cpp/amp/tensors/low_precision.h>

namespace apex::amp::detail {
namespace {

// Whether `statistics` takes it. Unscaling refuses other gradients, but does not see those from before the block that the pass
// added nothing to: a program may have put any there, and no overflow was found in them.
bool has_statistics(const at::Tensor& grad) { return grad.layout() == at::kStrided && is_real_float(grad.scalar_type()); }

// The parameter with the first such gradient, of those that `of` has: the parameters, or their masters. One pass over all.
struct AtFault {
  const TrainedParam* param = nullptr;
  NonfiniteGrad grad;
};

AtFault first_at_fault(MasterTable::Params params, at::Tensor TrainedParam::*of, const Session& session) {
  std::vector<const TrainedParam*> owners;
  NamedTensors grads;
  for (const TrainedParam* each : params) {
    const at::Tensor& grad = (each->*of).grad();
    if (!grad.defined() || !has_statistics(grad)) continue;
    owners.push_back(each);
    grads.emplace_back(session.plain_name_of(each->param), grad);
  }
  auto [grad, index] = first_nonfinite(statistics(grads));
  if (!grad.found()) return {};
  grad.dtype = grads[index].second.scalar_type();
  return {owners[index], std::move(grad)};
}

}  // namespace

NonfiniteGrad first_nonfinite(const MasterTable& table, const Session& session) {
  AtFault found = first_at_fault(table.all(), &TrainedParam::param, session);
  if (!found.param) return first_at_fault(table.with_masters(), &TrainedParam::master, session).grad;
  const auto sync = grad_sync_of(found.param->param);
  found.grad.is_reduced = sync != nullptr;
  if (sync) found.grad.ranks = sync->ranks_with_nonfinite(found.param->param);
  return found.grad;
}

NonfiniteGrad first_nonfinite(const GradShards& shards, const Session& session) {
  const auto found = shards.first_nonfinite();
  NonfiniteGrad grad;
  if (!found.param.defined()) return grad;
  grad.parameter = session.plain_name_of(found.param);
  grad.inf_count = found.inf_count, grad.nan_count = found.nan_count, grad.numel = found.param.numel();
  grad.grads = found.grads;
  grad.is_reduced = true;
  grad.ranks = found.ranks;
  return grad;
}

}  // namespace apex::amp::detail
