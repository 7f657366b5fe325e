#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
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

}  // namespace apex::parallel::detail
