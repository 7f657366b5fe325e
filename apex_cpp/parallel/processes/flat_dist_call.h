#pragma once

#include <ATen/core/Tensor.h>
#include <apex_cpp/parallel/processes/process_group.h>

#include <functional>
#include <string>
#include <vector>

namespace apex::parallel {

/// A collective operation over one flat tensor, in place.
using FlatCall = std::function<void(const at::Tensor& flat)>;

/// Calls `call` once for the tensors of each dtype and device, in the order of their first ones: their elements in one flat
/// tensor, which is copied back into them. Dense tensors of any shapes, all ranks with the same list. Apex:
/// `apex.parallel.distributed.flat_dist_call`, whose all_reduce is `all_reduce_mean`.
void flat_dist_call(const std::vector<at::Tensor>& tensors, const FlatCall& call);

/// The mean over the ranks of `group` (null: the default group), for `flat_dist_call`. Errors name `what`.
FlatCall all_reduce_mean(const ProcessGroup& group = nullptr, const std::string& what = "all-reducing flat tensors");
/// The values of rank `root`. Bits are copied, so that any dtype will do.
FlatCall broadcast_from(int root, const ProcessGroup& group = nullptr, const std::string& what = "broadcasting flat tensors");

}  // namespace apex::parallel
