#pragma once

#include "kernels/cuda/coded.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/rules/adagrad.h"
#include "kernels/rules/adam.h"
#include "kernels/rules/lamb.h"
#include "kernels/rules/larc.h"
#include "kernels/rules/lars.h"
#include "kernels/rules/lion.h"
#include "kernels/rules/novograd.h"
#include "kernels/rules/schedule_free.h"
#include "kernels/rules/settings.h"
#include "kernels/rules/sgd.h"

// Kernel bodies are templates over the block that runs them, so that tests can run them on the host. A Block has
//   index(), count()      the index of this block and the number of blocks in the grid
//   threads()             the number of threads in the block
//   each_thread(f)        calls f(t) for each thread t; on a device each thread calls it with its own index. Outside of f all
//                         threads take the same path. Values leave f through memory only.
//   barrier()             makes the writes of all threads visible to all threads of the block
//   shared(), kSharedBytes  the block's shared memory and its size
//   is_last(ticket, n)    true for the last of n calls, over all blocks, with this ticket. The writes before all n calls are
//                         then visible through read(). Implies barriers, and resets the ticket to 0.
//   read(address)         the value at the address, as other blocks have written it
namespace apex::kernels::cuda {

template <class Rule, bool kKnowsRows, class Block, class Op>
DEVICE_BODY void update_part(const Block& block, const Part& part, const Rule& rule, const Op& op) {
  block.each_thread([&](int thread) {
    if constexpr (Op::kCoded) {
      using Work = ApplyCoded<Rule, Op::kCopied, Op::kSplit>;
      Work::to(rule, part, thread, block.threads(), op.current().rounding().key(part.row->index));
    } else {
      using Work = Apply<Rule, Op::kCopied, kPack, 1, kKnowsRows, Op::kSplit>;
      typename Work::Sums residues = {};
      Work::to(rule, part, thread, block.threads(), residues);
      if constexpr (Rule::kSums != 0) op.report(residues);
    }
  });
}

DEVICE_BODY inline Part part_or_none(const Table& table, int64_t i) {
  return i < table.spans.count ? span_at(table, i) : Part{nullptr, 0, 0};
}

// One pass over all tensors of the table, each element once. An Op has
//   stopped()             true if the launch must change nothing
//   prepared()            computes, once per block, an object whose rule<Real>(row) returns the rule of a row
//   kTakesDoubles         true if there are rules for float64. They take many registers: launches over tables without float64
//                         use kernels without them (kDoubles is false)
//   kCopied, kSplit       as in Apply
//   kCoded                true if the moments are stored in 8 bits
//   report(residues)      for rules with sums: receives the sums of one thread
//   finishes(), finish(block, table)   whether the last block to complete its work has to call finish(), and the call
template <bool kDoubles, class Op, class Block>
DEVICE_BODY void run_updates(const Block& block, const Table& table, const Op& op) {
  if (op.stopped()) return;
  const auto prepared = op.prepared();
  // The next part is looked up before this one is processed, so that nothing waits for the table.
  Part next = part_or_none(table, block.index());
  for (int64_t i = block.index(); i < table.spans.count; i += block.count()) {
    const Part part = next;
    next = part_or_none(table, i + block.count());
    if constexpr (kDoubles) {
      if (part.row->has_double) {
        update_part<decltype(prepared.template rule<double>(*part.row)), false>(block, part,
                                                                                prepared.template rule<double>(*part.row), op);
        continue;
      }
    }
    update_part<decltype(prepared.template rule<float>(*part.row)), !kDoubles>(block, part,
                                                                               prepared.template rule<float>(*part.row), op);
  }
  if (op.finishes() && block.is_last(table.grid_ticket, static_cast<uint32_t>(block.count()))) op.finish(block, table);
}

}  // namespace apex::kernels::cuda

// The Ops of optimizer updates.
namespace apex::kernels::cuda {

// The base of Ops with settings: reads the step tensors' values, and counts the step when all blocks are done.
template <class Settings>
struct StepOp {
  static constexpr bool kTakesDoubles = false, kSplit = false;

  Settings settings;
  rules::StepAddresses addresses;

  DEVICE_BODY bool stopped() const { return addresses.found_inf != nullptr && *addresses.found_inf != 0; }
  DEVICE_BODY Settings current() const { return rules::read_settings(settings, addresses); }
  DEVICE_BODY bool finishes() const { return addresses.step != nullptr; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table&) const {
    count_step(block);
  }

  template <class Block>
  DEVICE_BODY void count_step(const Block& block) const {
    block.each_thread([&](int thread) {
      if (thread == 0 && addresses.step != nullptr) ++*addresses.step;
    });
  }
};

// The position of the parameters among the values of rules.
constexpr int kParam = 1;

// The base of Ops that update parameters. Copies of them go to the model's parameters.
template <class Settings>
struct UpdateOp : StepOp<Settings> {
  static constexpr int kCopied = kParam;
  static constexpr bool kCoded = false;
};

// The same for parameters that are stored as bfloat16 and remainders.
template <class Op>
struct Split : Op {
  static constexpr bool kSplit = true;
};

// The same update with moments in 8 bits.
template <class Op>
struct Coded : Op {
  static constexpr bool kCoded = true;

  DEVICE_BODY auto prepared() const { return typename Op::template ByDtype<true, Op::kSplit>{Op::prepared().any}; }
};

// One rule for all tensors.
template <class Rule>
struct UniformRule {
  Rule same;

  template <class Real>
  DEVICE_BODY Rule rule(const Row&) const {
    return same;
  }
};

// One rule for tensors whose list kList is stored in float16, another for the rest.
template <class Rule, int kList>
struct RuleByDtype {
  Rule for_half, for_others;

  template <class Real>
  DEVICE_BODY Rule rule(const Row& row) const {
    return row.dtypes[kList] == Dtype::half ? for_half : for_others;
  }
};

struct PlainSgd : UpdateOp<rules::SgdSettings> {
  DEVICE_BODY RuleByDtype<rules::PlainSgd, 1> prepared() const {
    return {rules::plain_sgd(current(), true), rules::plain_sgd(current(), false)};
  }
};

struct MomentumSgd : UpdateOp<rules::SgdSettings> {
  DEVICE_BODY RuleByDtype<rules::MomentumSgd, 1> prepared() const {
    return {rules::momentum_sgd(current(), true), rules::momentum_sgd(current(), false)};
  }
};

struct Adam : UpdateOp<rules::AdamSettings> {
  template <bool kHasCodes, bool kHasRemainders>
  struct ByDtype {
    rules::Adam any;

    template <class Real>
    DEVICE_BODY rules::Adam rule(const Row& row) const {
      const bool moments_are_bfloat16 = !kHasCodes && row.dtypes[rules::Adam::kMean] == Dtype::bfloat16;
      const bool param_is_bfloat16 = !kHasRemainders && row.dtypes[kCopied] == Dtype::bfloat16;
      return rules::for_dtypes(any, param_is_bfloat16, moments_are_bfloat16);
    }
  };

  DEVICE_BODY ByDtype<false, false> prepared() const { return {rules::adam(current())}; }
};

struct Adagrad : UpdateOp<rules::AdagradSettings> {
  DEVICE_BODY UniformRule<rules::Adagrad> prepared() const { return {rules::adagrad(current())}; }
};

struct Lion : UpdateOp<rules::LionSettings> {
  DEVICE_BODY UniformRule<rules::Lion> prepared() const { return {rules::lion(current())}; }
};

struct ScheduleFreeAdamW : UpdateOp<rules::ScheduleFreeSettings> {
  DEVICE_BODY UniformRule<rules::ScheduleFreeAdamW> prepared() const { return {rules::schedule_free_adamw(current())}; }
};

struct Lerp : UpdateOp<rules::LerpSettings> {
  DEVICE_BODY UniformRule<rules::Lerp> prepared() const { return {rules::lerp(current())}; }
};

// Steps with the running norms that NovoGradNorms has written to `next`, and copies them to `running`.
struct NovoGrad : UpdateOp<rules::NovoGradSettings> {
  const float* next;
  float* running;

  struct ByNorm {
    rules::NovoGradSettings settings;
    const float* norms;

    template <class Real>
    DEVICE_BODY rules::NovoGrad rule(const Row& row) const {
      return rules::novograd(settings, norms[row.index]);
    }
  };

  DEVICE_BODY ByNorm prepared() const { return {current(), next}; }
  DEVICE_BODY bool finishes() const { return true; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    block.each_thread([&](int thread) {
      for (int64_t i = thread; i < table.count; i += block.threads()) running[i] = next[i];
    });
    count_step(block);
  }
};

struct LambStage2 : UpdateOp<rules::LambSettings> {
  const float* param_norms;
  const float* update_norms;

  struct ByNorms {
    rules::LambSettings settings;
    const float* params;
    const float* updates;

    template <class Real>
    DEVICE_BODY rules::LambStage2 rule(const Row& row) const {
      return rules::lamb_stage_2(settings, params[row.index], updates[row.index]);
    }
  };

  DEVICE_BODY ByNorms prepared() const { return {current(), param_norms, update_norms}; }
};

struct LambFromMoments : LambStage2 {
  struct ByNorms {
    rules::LambStage1 first;
    LambStage2::ByNorms second;

    template <class Real>
    DEVICE_BODY rules::LambFromMoments rule(const Row& row) const {
      return {first, second.template rule<Real>(row)};
    }
  };

  DEVICE_BODY ByNorms prepared() const {
    return {rules::lamb_stage_1(current(), /*global_grad_norm=*/0, /*half_updates=*/false), LambStage2::prepared()};
  }
};

// The norms of the gradients are those before grad_scale.
struct Larc : UpdateOp<rules::LarcSettings> {
  const float* grad_norms;
  const float* param_norms;

  struct ByNorms {
    rules::LarcSettings settings;
    const float* grads;
    const float* params;

    template <class Real>
    DEVICE_BODY rules::Larc rule(const Row& row) const {
      return rules::larc(settings, params[row.index], grads[row.index]);
    }
  };

  DEVICE_BODY ByNorms prepared() const { return {current(), grad_norms, param_norms}; }
};

// The norms of the gradients are those after grad_scale.
struct Lars : UpdateOp<rules::LarsSettings> {
  const float* grad_norms;
  const float* param_norms;

  struct ByNorms {
    rules::LarsSettings settings;
    const float* grads;
    const float* params;

    template <class Real>
    DEVICE_BODY rules::Lars rule(const Row& row) const {
      return rules::lars(settings, params[row.index], grads[row.index]);
    }
  };

  DEVICE_BODY ByNorms prepared() const { return {current(), grad_norms, param_norms}; }
};

}  // namespace apex::kernels::cuda

// Calls define(Op) for every Op that run_updates() takes: launch templates are instantiated for these.
#define APEX_CPP_FOR_EACH_UPDATE_OP(define)                                                                                 \
  define(Scale) define(CheckFinite) define(Axpby) define(Copy) define(PlainSgd) define(MomentumSgd) define(Adam)            \
      define(Adagrad) define(NovoGrad) define(LambStage2) define(Larc) define(Split<PlainSgd>) define(Split<MomentumSgd>)   \
          define(Split<Adam>) define(Split<Adagrad>) define(Split<NovoGrad>) define(Coded<Adam>) define(Coded<Split<Adam>>) \
              define(Split<LambFromMoments>) define(Lion) define(Split<Lion>) define(Lars) define(Split<Lars>)              \
                  define(ScheduleFreeAdamW) define(Split<ScheduleFreeAdamW>) define(Lerp) define(Split<Lerp>)
