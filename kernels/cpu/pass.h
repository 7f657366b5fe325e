#pragma once

#include <array>
#include <vector>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/rules/lanes.h"

// One pass of a rule over the tensors of a group. A chunk is walked in blocks: 16-bit elements of a block are converted to
// values in a buffer that stays in the first-level cache, values of the rule's own type are worked on where they are. So a rule
// is compiled once per instruction set, not once per mix of dtypes.
namespace apex::kernels::cpu {

constexpr int64_t kBlock = 512;
static_assert(kBlock == rules::kLanes, "element i of a block belongs to lane i");

// Sums are held lane by lane over a chunk, for as many elements as a block has, and folded at its end.
// The rule's sums over each chunk of a group.
template <class Rule>
using ChunkSums = std::vector<std::array<double, Rule::kSums>>;

// The lists behind those that the rule knows: at most one, which gets a copy of value `copied`.
constexpr size_t kNoCopy = ~size_t{0};

template <class Rule>
class Pass {
  using Real = typename Rule::Real;
  using SumReal = rules::SumReal<Rule>;
  static constexpr size_t kValues = rules::kValues<Rule>;

 public:
  explicit Pass(const plan::Group& group, size_t copied = kNoCopy) : group_(group), copied_(copied) {
    for (size_t i = 0; i < kValues; ++i) {
      readers_[i] = reader<Real>(group.dtypes[i]);
      writers_[i] = writer<Real>(group.dtypes[i]);
    }
    if (copied != kNoCopy) copy_writer_ = cpu::copy_writer<Real>(group.dtypes[kValues], group.numel);
  }

  std::array<double, Rule::kSums> run(const Rule& rule, const plan::Chunk& chunk) const {
    alignas(64) SumReal lanes[Rule::kSums + 1][kBlock];
    const auto used = static_cast<int>(std::min(chunk.size, kBlock));
    for (size_t s = 0; s < Rule::kSums; ++s) std::fill_n(lanes[s], rules::folded_lanes(used), SumReal(0));
    const plan::TensorRow& row = group_.rows[static_cast<size_t>(chunk.row)];
    for (int64_t start = 0; start < chunk.size; start += kBlock) {
      run_block(rule, row, chunk.offset + start, std::min(kBlock, chunk.size - start), lanes);
    }
    if (copied_ != kNoCopy) fence_();
    std::array<double, Rule::kSums> sums{};
    if constexpr (Rule::kSums != 0) {
      for (size_t s = 0; s < Rule::kSums; ++s) {
        sums[s] = rules::chunk_sum<Rule>(rules::fold_lanes<typename Rule::Fold>(lanes[s], used));
      }
    }
    return sums;
  }

 private:
  void run_block(const Rule& rule, const plan::TensorRow& row, int64_t offset, int64_t size, SumReal (*lanes)[kBlock]) const {
    alignas(64) Real buffers[kValues][kBlock];
    Real* values[kValues];
    SumReal* sums[Rule::kSums + 1];
    for (size_t i = 0; i < kValues; ++i) {
      values[i] = readers_[i] == nullptr ? static_cast<Real*>(row.data[i]) + offset : buffers[i];
      if (readers_[i] != nullptr && rules::is_read(Rule::kUses[i])) readers_[i](element(row, i, offset), values[i], size);
    }
    for (size_t s = 0; s < Rule::kSums; ++s) sums[s] = lanes[s];
    kernel_(rule, values, sums, size);
    for (size_t i = 0; i < kValues; ++i) {
      if (writers_[i] != nullptr && rules::is_written(Rule::kUses[i])) writers_[i](values[i], element(row, i, offset), size);
    }
    if (copied_ != kNoCopy) write_copy(values[copied_], element(row, kValues, offset), size);
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
  RunBlock<Rule> kernel_ = block_kernel<Rule>();
  std::array<Reader<Real>, kValues> readers_;
  std::array<Writer<Real>, kValues> writers_;
  size_t copied_;
  Writer<Real> copy_writer_ = nullptr;
  void (*fence_)() = current_kernels().conversions.fence;
};

// Runs rule_of(row) over each row of the group. Any number of threads gives the same bits.
template <class Rule, class RuleOf>
ChunkSums<Rule> run_pass(const plan::Group& group, const RuleOf& rule_of, size_t copied = kNoCopy) {
  const Pass<Rule> pass(group, copied);
  ChunkSums<Rule> sums(group.chunks.size());
  for_each_chunk(group, [&](int64_t i) {
    const plan::Chunk& chunk = group.chunks[static_cast<size_t>(i)];
    sums[static_cast<size_t>(i)] = pass.run(rule_of(group.rows[static_cast<size_t>(chunk.row)]), chunk);
  });
  return sums;
}

// The same rule for all rows.
template <class Rule>
ChunkSums<Rule> run_pass(const plan::Group& group, const Rule& rule) {
  return run_pass<Rule>(group, [&](const plan::TensorRow&) { return rule; });
}

}  // namespace apex::kernels::cpu
