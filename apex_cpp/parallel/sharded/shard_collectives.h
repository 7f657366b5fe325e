#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

#include <string>

namespace apex::parallel::detail {

/// A reduce-scatter under way. `pieces`: [ranks * n], of which rank r gets the sum of all ranks' elements from r * n on.
///
/// Over NCCL it is NCCL's, which adds in the dtype of the pieces. Elsewhere every rank receives all pieces of its part (as many
/// bytes on the wire as the best reduce-scatter) and adds them in rank order in float32: the sum depends on the values and
/// the number of ranks alone, and sending 16-bit gradients as they are loses nothing. Gloo's own reduce-scatter sends twice as
/// much and adds in an order of its own.
class ReduceScatter {
 public:
  ReduceScatter(ProcessGroup group, at::Tensor pieces, std::string what);
  /// The sum, float32, [n]. Errors: as `wait`.
  at::Tensor finish();

 private:
  ProcessGroup group_;
  std::string what_;
  at::Tensor sent_, received_;
  c10::intrusive_ptr<c10d::Work> work_;  // null for one rank
};

/// An all-gather under way: every rank's `part`, [n], one behind the other.
class AllGather {
 public:
  AllGather(ProcessGroup group, at::Tensor part, std::string what);
  /// [ranks * n]. Errors: as `wait`.
  at::Tensor finish();

 private:
  ProcessGroup group_;
  std::string what_;
  at::Tensor part_, all_;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace apex::parallel::detail
