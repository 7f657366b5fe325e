#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

// The layout of parameters in buckets, and the part of each that a rank keeps. It depends only on shapes, dtypes and the number
// of ranks, so all ranks compute the same layout.
namespace apex::parallel::detail {

/// The properties of a parameter that determine its place.
struct ParamSpec {
  size_t index;
  int64_t numel;
  at::Device device;
  at::ScalarType dtype, grad_dtype, param_dtype;  // of the parameter; of sent gradients; of sent new values
};

/// A parameter in its bucket: elements [begin, begin + numel).
struct Slot {
  size_t param;
  int64_t begin, numel;
};

/// The part of a parameter that a rank keeps: elements [begin, begin + numel) of the parameter, which start at element
/// `in_shard` of the rank's shard of the bucket.
struct Part {
  int64_t begin = 0, numel = 0, in_shard = 0;
};

/// Parameters with the same device and dtypes, one after the other. Each starts at a multiple of 32 elements, as do shards: a
/// part then starts at a group of moments in 8 bits (kernels/rules/quantized.h), and is aligned. Rank r's shard starts at
/// element r * shard_size. Padding follows the parameters.
struct BucketLayout {
  at::Device device;
  at::ScalarType dtype, grad_dtype, param_dtype;
  std::vector<Slot> slots;
  int64_t numel = 0;
  int64_t shard_size = 0;

  Part part_of(const Slot& slot, int rank) const;
};

/// Fills buckets of at most `bytes` of gradients (at least one parameter) in reverse order of the parameters, which is roughly
/// the order of the backward pass. Returns buckets in the order in which they are full.
std::vector<BucketLayout> lay_out(const std::vector<ParamSpec>& params, int64_t bytes, int ranks);

/// A dense tensor as a one-dimensional view in memory order.
at::Tensor flat(const at::Tensor& tensor);

/// A reduce-scatter in progress. `pieces`: [ranks * n]; rank r gets the sum of all ranks' elements from r * n on.
///
/// With NCCL it is NCCL's own, which adds in the dtype of the pieces. Otherwise every rank receives all pieces of its part (as
/// many bytes as the best reduce-scatter sends) and adds them in float32 in rank order: the sum depends only on the values and
/// the number of ranks, and 16-bit gradients are sent without loss. Gloo's reduce-scatter sends twice as much and adds in
/// another order.
class ReduceScatter {
 public:
  ReduceScatter(ProcessGroup group, at::Tensor pieces, std::string what);
  /// Returns the sum, float32, [n]. Errors: those of `wait`.
  at::Tensor finish();

 private:
  ProcessGroup group_;
  std::string what_;
  at::Tensor sent_, received_;
  c10::intrusive_ptr<c10d::Work> work_;  // null for one rank
};

/// An all-gather in progress: concatenates every rank's `part`, [n].
class AllGather {
 public:
  AllGather(ProcessGroup group, at::Tensor part, std::string what);
  /// Returns [ranks * n]. Errors: those of `wait`.
  at::Tensor finish();

 private:
  ProcessGroup group_;
  std::string what_;
  at::Tensor part_, all_;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace apex::parallel::detail
