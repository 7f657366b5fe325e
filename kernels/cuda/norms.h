#pragma once

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/updates.h"
#include "kernels/rules/norms.h"
#include "kernels/rules/rule.h"

// Passes that take sums over whole tensors, in the fixed order of rules/rule.h. updates.h says what a Block and an Op are.
namespace apex::kernels::cuda {

// Elements that a thread processes at a time in a sum: few, so that many threads share a chunk's lanes.
constexpr int kSumPack = 2;

// Thread t processes packs t, t + kSumThreads, ..., which always belong to the same lanes.
constexpr int kSumThreads = rules::kLanes / kSumPack;

// Folds a row of lanes in shared memory in the order of rules::fold_lanes, with all threads. The result is in lanes[0].
template <class Fold, class Real, class Block>
DEVICE_BODY void fold_shared(const Block& block, Real* lanes, int used) {
  block.barrier();
  for (int width = rules::folded_lanes(used) / 2; width > 0; width /= 2) {
    block.each_thread([&](int thread) {
      for (int i = thread; i < width; i += block.threads()) lanes[i] = Fold::join(lanes[i], lanes[i + width]);
    });
    block.barrier();
  }
}

// Folds `count` values that other blocks have written. All threads get the result.
template <class Fold, class Block>
DEVICE_BODY double ordered_fold(const Block& block, const double* values, int64_t count) {
  double* const lanes = static_cast<double*>(block.shared());
  block.each_thread([&](int thread) {
    for (int lane = thread; lane < rules::kLanes; lane += block.threads()) {
      double sum = 0;
      for (int64_t i = lane; i < count; i += rules::kLanes) sum = Fold::join(sum, block.read(values + i));
      lanes[lane] = sum;
    }
  });
  fold_shared<Fold>(block, lanes, static_cast<int>(smaller(count, rules::kLanes)));
  const double result = lanes[0];
  block.barrier();
  return result;
}

// Computes the sums over a chunk. Sum `s` is in the first lane of row `s` of lanes in shared memory.
template <bool kKnowsRows, bool kSplit, class Rule, class Block>
DEVICE_BODY void sum_chunk(const Block& block, const Part& part, const Rule& rule) {
  using Real = rules::SumReal<Rule>;
  using Work = Apply<Rule, kSplit ? kParam : kNoCopy, kSumPack, kSumPack, kKnowsRows, kSplit>;
  static_assert(Rule::kSums * rules::kLanes * sizeof(Real) <= Block::kSharedBytes);
  Real* const lanes = static_cast<Real*>(block.shared());
  block.each_thread([&](int thread) {
    typename Work::Sums sums = {};
    Work::to(rule, part, thread, kSumThreads, sums);
    // Element 0 of the chunk belongs to lane 0. The packs before it, which the shift makes, are empty.
    for (int s = 0; s < static_cast<int>(Rule::kSums); ++s) {
      for (int i = 0; i < kSumPack; ++i) {
        const int lane = (thread * kSumPack + i + rules::kLanes - part.row->shift) % rules::kLanes;
        lanes[s * rules::kLanes + lane] = sums[s][i];
      }
    }
  });
  const auto used = static_cast<int>(smaller(part.size, rules::kLanes));
  for (int s = 0; s < static_cast<int>(Rule::kSums); ++s) {
    fold_shared<typename Rule::Fold>(block, lanes + s * rules::kLanes, used);
  }
}

// Stores the sums over chunk i in the table, and folds the chunks of the row when its last chunk is done.
template <bool kKnowsRows, bool kSplit, class Rule, class Block>
DEVICE_BODY void sum_part(const Block& block, const Table& table, int64_t i, const Part& part, const Rule& rule) {
  sum_chunk<kKnowsRows, kSplit>(block, part, rule);
  const Row& row = *part.row;
  const int64_t chunks = (row.numel + kChunk - 1) / kChunk;
  block.each_thread([&](int thread) {
    if (thread >= static_cast<int>(Rule::kSums)) return;
    const double sum = rules::chunk_sum<Rule>(static_cast<rules::SumReal<Rule>*>(block.shared())[thread * rules::kLanes]);
    (chunks == 1 ? table.row_sums(thread)[row.index] : table.chunk_sums(thread)[i]) = sum;
  });
  block.barrier();
  if (chunks == 1 || !block.is_last(table.row_tickets + (part.row - table.rows), static_cast<uint32_t>(chunks))) return;
  for (int s = 0; s < static_cast<int>(Rule::kSums); ++s) {
    const double sum = ordered_fold<typename Rule::Fold>(block, table.chunk_sums(s) + row.first_chunk, chunks);
    block.each_thread([&](int thread) {
      if (thread == 0) table.row_sums(s)[row.index] = sum;
    });
  }
}

// One pass over all tensors of the table, in blocks of kSumThreads threads. When the Op's finish() is called, the sums of each
// tensor are in table.row_sums. kSplit: as in Apply, for the parameter.
template <bool kDoubles, class Op, class Block>
DEVICE_BODY void run_sums(const Block& block, const Table& table, const Op& op) {
  if (op.stopped()) return;
  const auto prepared = op.prepared();
  for (int64_t i = block.index(); i < table.chunks.count; i += block.count()) {
    const Part part = chunk_at(table, i);
    if constexpr (kDoubles) {
      if (part.row->has_double) {
        sum_part<false, Op::kSplit>(block, table, i, part, prepared.template rule<double>(*part.row));
        continue;
      }
    }
    sum_part<!kDoubles, Op::kSplit>(block, table, i, part, prepared.template rule<float>(*part.row));
  }
  if (op.finishes() && block.is_last(table.grid_ticket, static_cast<uint32_t>(block.count()))) op.finish(block, table);
}

}  // namespace apex::kernels::cuda

// The Ops that take norms of tensors.
namespace apex::kernels::cuda {

DEVICE_BODY inline bool is_finite(float value) { return rules::subtract(value, value) == 0; }

// Where to write norms. nullptr: not wanted.
struct NormOutputs {
  float* total;        // of all elements
  float* each;         // of each tensor, by index
  int32_t* found_inf;  // raised if the total is not finite
};

// The norm from a tensor's sum: the root for L2 norms, the sum itself for largest magnitudes.
template <bool kL2>
DEVICE_BODY float as_norm(double sum) {
  return kL2 ? rules::root_of_sum(sum) : rules::as_float(sum);
}

// Writes the norm of each tensor, from its sum `s`.
template <bool kL2, class Block>
DEVICE_BODY void write_each(const Block& block, const Table& table, int s, float* norms) {
  block.each_thread([&](int thread) {
    for (int64_t i = thread; i < table.count; i += block.threads()) norms[i] = as_norm<kL2>(block.read(table.row_sums(s) + i));
  });
}

// Norms of all tensors. Without outputs it only leaves the sums in the table.
template <bool kL2>
struct Norms {
  static constexpr bool kTakesDoubles = true, kSplit = false;
  using Fold = std::conditional_t<kL2, rules::Sum, rules::Largest>;

  double factor;
  const float* factor_on_device;  // replaces `factor` unless nullptr
  NormOutputs outputs;

  struct Prepared {
    double factor;

    template <class Real>
    DEVICE_BODY auto rule(const Row&) const {
      if constexpr (kL2) {
        return rules::SumOfSquares<Real>{static_cast<Real>(factor)};
      } else {
        return rules::MaxMagnitude<Real>{};
      }
    }
  };

  DEVICE_BODY bool stopped() const { return false; }
  DEVICE_BODY Prepared prepared() const { return {factor_on_device != nullptr ? *factor_on_device : factor}; }
  DEVICE_BODY bool finishes() const { return outputs.total != nullptr; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    const float total = as_norm<kL2>(ordered_fold<Fold>(block, table.row_sums(0), table.count));
    block.each_thread([&](int thread) {
      if (thread != 0) return;
      *outputs.total = total;
      if (!is_finite(total)) raise(outputs.found_inf);
    });
    if (outputs.each != nullptr) write_each<kL2>(block, table, 0, outputs.each);
  }
};

// Writes NovoGrad's running norms after this step to `next`. If one is not finite, raises found_inf, which stops the update.
template <bool kL2>
struct NovoGradNorms : StepOp<rules::NovoGradSettings> {
  const float* running;
  float* next;

  DEVICE_BODY auto prepared() const {
    if constexpr (kL2) {
      return UniformRule<rules::SumOfSquares<float>>{{rules::as_float(current().grad_scale)}};
    } else {
      return UniformRule<rules::MaxMagnitude<float>>{{}};
    }
  }

  DEVICE_BODY bool finishes() const { return true; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    const rules::NovoGradSettings now = current();
    const float scale = rules::as_float(now.grad_scale);
    block.each_thread([&](int thread) {
      for (int64_t i = thread; i < table.count; i += block.threads()) {
        float norm = as_norm<kL2>(block.read(table.row_sums(0) + i));
        if constexpr (!kL2) norm = rules::multiply(norm, scale < 0 ? -scale : scale);
        next[i] = rules::next_norm(now, running[i], norm);
        if (!is_finite(next[i])) raise(addresses.found_inf);
      }
    });
  }
};

// Writes the norms of each parameter and update.
struct LambSums : StepOp<rules::LambSettings> {
  const float* global_grad_norm;
  float* param_norms;
  float* update_norms;

  DEVICE_BODY double global_norm() const { return global_grad_norm != nullptr ? *global_grad_norm : 0.0; }
  DEVICE_BODY UniformRule<rules::LambSums> prepared() const {
    return {{rules::lamb_stage_1(current(), global_norm(), /*half_updates=*/false)}};
  }
  DEVICE_BODY bool finishes() const { return true; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    write_each<true>(block, table, 0, param_norms);
    write_each<true>(block, table, 1, update_norms);
  }
};

// The same, besides the updates. Counts the step.
struct LambStage1 : LambSums {
  DEVICE_BODY RuleByDtype<rules::LambStage1, 4> prepared() const {
    return {rules::lamb_stage_1(current(), global_norm(), true), rules::lamb_stage_1(current(), global_norm(), false)};
  }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    LambSums::finish(block, table);
    count_step(block);
  }
};

// The norms of gradients and parameters in one pass.
template <class Settings>
struct PairOfNorms : StepOp<Settings> {
  float* grad_norms;
  float* param_norms;

  DEVICE_BODY bool finishes() const { return true; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    write_each<true>(block, table, 0, grad_norms);
    write_each<true>(block, table, 1, param_norms);
  }
};

struct LarcNorms : PairOfNorms<rules::LarcSettings> {
  DEVICE_BODY UniformRule<rules::PairOfSquares> prepared() const { return {}; }
};

// The norms of the gradients are those after grad_scale.
struct LarsNorms : PairOfNorms<rules::LarsSettings> {
  DEVICE_BODY UniformRule<rules::LarsSums> prepared() const { return {{rules::as_float(current().grad_scale)}}; }
};

// Addresses of a loss scale and of the flag that it is updated by.
struct LossScaleAddresses {
  float* scale;
  int32_t* growth;
  int32_t* hysteresis;
  const int32_t* found_inf;

  DEVICE_BODY void apply(const rules::ScaleUpdate& update) const {
    const rules::LossScale after = update({*scale, *growth, *hysteresis}, *found_inf != 0);
    *scale = after.scale;
    *growth = after.growth;
    *hysteresis = after.hysteresis;
  }
};

}  // namespace apex::kernels::cuda

// Calls define(Op) for every Op that run_sums() takes: launch templates are instantiated for these.
#define APEX_CPP_FOR_EACH_SUM_OP(define)                                                                               \
  define(Norms<true>) define(Norms<false>) define(NovoGradNorms<true>) define(NovoGradNorms<false>) define(LambStage1) \
      define(Split<LambSums>) define(LarcNorms) define(LarsNorms) define(Split<LarsNorms>)
