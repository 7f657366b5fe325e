#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

// How parameters lie in buckets, and which part of them each rank keeps. A function of shapes, dtypes and the number of ranks
// alone, so that all ranks find the same.
namespace apex::parallel::detail {

/// What the layout asks of a parameter.
struct ParamSpec {
  size_t index;
  int64_t numel;
  at::Device device;
  at::ScalarType dtype, grad_dtype, param_dtype;  // its own; in which gradients, and new values, are sent
};

/// A parameter in its bucket: elements [begin, begin + numel).
struct Slot {
  size_t param;
  int64_t begin, numel;
};

/// The part of a parameter that a rank keeps: elements [begin, begin + numel) of the parameter, which are those from
/// `in_shard` on of the rank's shard of the bucket.
struct Part {
  int64_t begin = 0, numel = 0, in_shard = 0;
};

/// Parameters of one device and one set of dtypes, one behind the other. Rank r's shard are the elements from r * shard_size
/// on; behind the last parameter there is padding.
struct BucketLayout {
  at::Device device;
  at::ScalarType dtype, grad_dtype, param_dtype;
  std::vector<Slot> slots;
  int64_t numel = 0;
  int64_t shard_size = 0;

  Part part_of(const Slot& slot, int rank) const;
};

/// Fills buckets of at most `bytes` of gradients (one parameter at least) with parameters in reverse order, which is about that
/// in which backward reaches them. Buckets come in the order in which they are full.
std::vector<BucketLayout> lay_out(const std::vector<ParamSpec>& params, int64_t bytes, int ranks);

/// The memory of a dense tensor from start to end.
at::Tensor flat(const at::Tensor& tensor);

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
