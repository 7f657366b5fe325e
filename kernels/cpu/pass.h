#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/plan/plan.h"
#include "kernels/rules/quantized.h"
#include "kernels/rules/rule.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

namespace apex::kernels::cpu {

// Calls visit(i) for each chunk i of the group, on all threads if there is enough work. Threads take a few chunks at a time
// until none is left: chunks differ in size, and other work on its core may slow a thread down.
template <class Visit>
void for_each_chunk(const plan::Group& group, const Visit& visit) {
  constexpr int64_t kShare = 32768;  // elements that a thread takes at a time
  const auto count = static_cast<int64_t>(group.chunks.size());
  const int64_t share = std::max<int64_t>(1, kShare * count / std::max<int64_t>(1, group.numel));
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), (count + share - 1) / share);
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t begin = next.fetch_add(share); begin < count; begin = next.fetch_add(share)) {
      for (int64_t i = begin; i < std::min(begin + share, count); ++i) visit(i);
    }
  });
}

// One pass of a rule over the tensors of a group. If there is a kernel for the storage of the lists, it processes a whole
// chunk. Otherwise a chunk is processed in blocks: elements of other types are converted in a buffer that fits the first-level
// cache, elements of the rule's own type are used in place.

constexpr int64_t kBlock = 512;
static_assert(kBlock == rules::kLanes, "element i of a block belongs to lane i");

// From this size on copies are written past the caches. Measured: an update of float32 lists then moves 1 GiB, and gains 2%
// (Intel Xeon) to 8% (AMD EPYC). Smaller updates lose, and so do non-temporal stores to the rule's own lists.
constexpr int64_t kStreamedElements = int64_t{32} << 20;

// The rule's sums over each chunk of a group.
template <class Rule>
using ChunkSums = std::vector<std::array<double, Rule::kSums>>;

// Runs a rule over chunks of a group. With `copies`, the list after the rule's own gets copies of its second value, the
// parameter, or holds the parameters' remainders.
template <class Rule>
class Pass {
  using Real = typename Rule::Real;
  using SumReal = rules::SumReal<Rule>;
  static constexpr size_t kValues = rules::kValues<Rule>, kParam = 1;

 public:
  // `rounding`: for rules with moments, which may be stored in 8 bits.
  Pass(const plan::Group& group, bool copies, const rules::Rounding& rounding)
      : group_(group),
        splits_(kHasPlace && copies && plan::is_remainder(last_dtype(group))),
        copies_(kHasPlace && copies && !splits_),
        param_is_like_first_(!copies && has_float_moments_beside(group)),
        past_caches_(copies_ && group.numel >= kStreamedElements),
        has_codes_(std::any_of(group.dtypes.begin(), group.dtypes.end(), plan::is_code)),
        rounding_(rounding) {
    for (size_t i = 0; i < kValues; ++i) {
      if (plan::is_code(group.dtypes[i])) continue;
      readers_[i] = reader<Real>(group.dtypes[i]);
      writers_[i] = writer<Real>(group.dtypes[i]);
    }
    if (copies_) copy_writer_ = writer<Real>(last_dtype(group));
    if (splits_) readers_[kParam] = nullptr, writers_[kParam] = nullptr;  // kernels take both parts as they are
    if (has_codes_) coded_ = find_coded();
  }

  // Applies the rule to a chunk and returns the chunk's sums.
  std::array<double, Rule::kSums> run(const Rule& rule, const plan::Chunk& chunk) const {
    alignas(64) SumReal lanes[Rule::kSums + 1][kBlock];
    const int used = rules::folded_lanes(static_cast<int>(std::min(chunk.size, kBlock)));
    const plan::TensorRow& row = group_.rows[static_cast<size_t>(chunk.row)];
    Block<Rule> block;
    block.ahead = is_in_place(row) ? ahead_in_place_ : ahead_;
    block.starts_sums = chunk.size >= kBlock;
    block.past_caches = past_caches_;
    for (size_t s = 0; s < Rule::kSums; ++s) {
      block.sums[s] = lanes[s];
      if (!block.starts_sums) std::fill_n(lanes[s], used, SumReal(0));
    }
    direct_ != nullptr || coded_ != nullptr ? run_directly(rule, row, chunk, block) : run_by_blocks(rule, row, chunk, block);
    if (past_caches_) current_kernels().conversions.fence();
    std::array<double, Rule::kSums> sums{};
    for (size_t s = 0; s < Rule::kSums; ++s) sums[s] = kernels_.fold(lanes[s], used);
    return sums;
  }

 private:
  // A rule with as many values as a group has lists leaves none for copies.
  static constexpr bool kHasPlace = kValues < plan::kMaxLists;
  static at::ScalarType last_dtype(const plan::Group& group) { return group.dtypes[kHasPlace ? kValues : 0]; }

  // Whether the parameter is stored as the gradient is, in 16 bits, and both moments are float32 or codes.
  static bool has_float_moments_beside(const plan::Group& group) {
    if constexpr (rules::kHasMoments<Rule>) {
      const at::ScalarType moment = group.dtypes[Rule::kMean];
      return group.dtypes[kParam] == group.dtypes[0] && c10::elementSize(group.dtypes[0]) == 2 &&
             group.dtypes[Rule::kSquare] == moment && (moment == at::kFloat || plan::is_code(moment));
    } else {
      return false;
    }
  }

  // The storage of the list behind the rule's own.
  int behind() const {
    if (param_is_like_first_) return static_cast<int>(Storage::like_first);
    return copies_ || splits_ ? static_cast<int>(storage_of(last_dtype(group_))) : 0;
  }

  RunBlock<Rule> find_direct() const {
    if (group_.has_double() || has_codes_) return nullptr;
    const auto index = [&](size_t list) { return static_cast<int>(storage_of(group_.dtypes[list])); };
    const bool param_differs = splits_ || param_is_like_first_;
    const int others = param_differs ? static_cast<int>(Storage::real) : index(kValues - 1);
    for (size_t i = 1; i < kValues; ++i) {
      if (index(i) != others && !(param_differs && i == kParam)) return nullptr;
    }
    if (copies_ && last_dtype(group_) == at::kFloat) return nullptr;
    return kernels_.run[index(0)][others][behind()];
  }

  // The kernel for moments in 8 bits and the lists beside them as they are. Needs the readers and writers.
  RunCodedBlock<Rule> find_coded() const {
    if (writers_[kParam] != nullptr && !param_is_like_first_) return nullptr;
    if (copies_ && copy_writer_ == nullptr) return nullptr;
    return kernels_.run_coded[static_cast<int>(storage_of(group_.dtypes[0]))][behind()];
  }

  // Whether the last list, if the rule only writes it, is the same memory as the first.
  static bool is_in_place(const plan::TensorRow& row) {
    return !rules::is_read(Rule::kUses[kValues - 1]) && row.data[kValues - 1] == row.data[0];
  }

  void run_directly(const Rule& rule, const plan::TensorRow& row, const plan::Chunk& chunk, Block<Rule>& block) const {
    for (size_t i = 0; i < kValues + (copies_ || splits_ ? 1 : 0); ++i) block.data[i] = element(row, i, chunk.offset);
    block.size = chunk.size;
    coded_ != nullptr ? coded_(rule, block, codes(row, chunk.offset)) : direct_(rule, block);
  }

  void run_by_blocks(const Rule& rule, const plan::TensorRow& row, const plan::Chunk& chunk, Block<Rule>& block) const {
    for (int64_t start = 0; start < chunk.size; start += kBlock) {
      block.size = std::min(kBlock, chunk.size - start);
      run_block(rule, row, chunk.offset + start, block);
      block.starts_sums = false;
    }
  }

  void run_block(const Rule& rule, const plan::TensorRow& row, int64_t offset, Block<Rule>& block) const {
    alignas(64) Real buffers[kValues][kBlock];
    const auto values = [&](size_t i) { return static_cast<Real*>(block.data[i]); };
    for (size_t i = 0; i < kValues; ++i) {
      block.data[i] = readers_[i] != nullptr ? buffers[i] : element(row, i, offset);
      if (readers_[i] != nullptr && rules::is_read(Rule::kUses[i])) readers_[i](element(row, i, offset), values(i), block.size);
    }
    if (splits_) block.data[kValues] = element(row, kValues, offset);
    has_codes_ ? run_coded_buffers_(rule, block, codes(row, offset)) : run_buffers_(rule, block);
    for (size_t i = 0; i < kValues; ++i) {
      if (writers_[i] != nullptr && rules::is_written(Rule::kUses[i]))
        writers_[i](values(i), element(row, i, offset), block.size);
    }
    if (copies_) write_copy(values(kParam), element(row, kValues, offset), block.size);
  }

  // Of the moments from element `offset` on, the first of a group. Behind the last element of a tensor are codes of zero.
  Codes codes(const plan::TensorRow& row, int64_t offset) const {
    Codes codes{};
    if constexpr (rules::kHasMoments<Rule>) {
      const int64_t at = rules::group_count(row.numel) * rules::kGroup + offset / rules::kGroup;
      codes.mean_exponents = static_cast<uint8_t*>(row.data[Rule::kMean]) + at;
      codes.square_exponents = static_cast<uint8_t*>(row.data[Rule::kSquare]) + at;
      codes.key = rounding_.key(static_cast<int64_t>(row.index)) + static_cast<uint32_t>(offset);
    }
    return codes;
  }

  void write_copy(const Real* values, void* to, int64_t size) const {
    if (copy_writer_ != nullptr) {
      copy_writer_(values, to, size);
    } else {
      std::copy_n(values, size, static_cast<Real*>(to));
    }
  }

  void* element(const plan::TensorRow& row, size_t list, int64_t offset) const {
    return static_cast<char*>(row.data[list]) + offset * static_cast<int64_t>(c10::elementSize(group_.dtypes[list]));
  }

  const plan::Group& group_;
  const Slot<Rule>& kernels_ = kernels_of<Rule>();
  std::array<Reader<Real>, kValues> readers_{};
  std::array<Writer<Real>, kValues> writers_{};
  bool splits_, copies_;  // what the list behind the rule's own holds
  bool param_is_like_first_;
  bool past_caches_;
  bool has_codes_;  // of both moments
  rules::Rounding rounding_;
  Writer<Real> copy_writer_ = nullptr;
  Ahead ahead_ = fetched_ahead(/*in_place=*/false), ahead_in_place_ = fetched_ahead(/*in_place=*/true);
  RunBlock<Rule> direct_ = find_direct();
  RunBlock<Rule> run_buffers_ = kernels_.run[0][0][splits_ ? behind() : 0];
  RunCodedBlock<Rule> coded_ = nullptr, run_coded_buffers_ = kernels_.run_coded[0][splits_ ? behind() : 0];
};

// Runs rule_of(row) over each row of the group and returns the sums of each chunk. Any number of threads gives the same bits.
template <class Rule, class RuleOf>
ChunkSums<Rule> run_pass(const plan::Group& group, const RuleOf& rule_of, bool copies = false,
                         const rules::Rounding& rounding = {}) {
  const Pass<Rule> pass(group, copies, rounding);
  ChunkSums<Rule> sums(group.chunks.size());
  for_each_chunk(group, [&](int64_t i) {
    const plan::Chunk& chunk = group.chunks[static_cast<size_t>(i)];
    sums[static_cast<size_t>(i)] = pass.run(rule_of(group.rows[static_cast<size_t>(chunk.row)]), chunk);
  });
  return sums;
}

// Runs one rule over all rows.
template <class Rule>
ChunkSums<Rule> run_pass(const plan::Group& group, const Rule& rule, bool copies = false,
                         const rules::Rounding& rounding = {}) {
  return run_pass<Rule>(
      group, [&](const plan::TensorRow&) { return rule; }, copies, rounding);
}

}  // namespace apex::kernels::cpu
