#pragma once

#include "kernels/cuda/control.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/rules/coefficients.h"

// Kernel bodies are templates over the block that runs them, so that tests run them on the host. A Block has
//   index(), count()      which block of how many of the grid this is
//   threads()             how many threads it has
//   each_thread(f)        f(t) for each thread t: on a device, each runs its own. All threads do alike whatever stands
//                         outside of f, and no value of one thread leaves f but through memory.
//   barrier()             all threads' writes so far are visible to all threads of the block from here on
//   shared(), kSharedBytes  memory of the block
//   is_last(ticket, n)    whether this is the last of n calls, over all blocks, with this ticket: then the writes before all
//                         those calls are visible here, through read(). Implies barriers, and sets the ticket back to 0.
//   read(address)         the value there as other blocks have left it
namespace apex::kernels::cuda {

template <class Rule, int kCopied, class Block, class Op>
DEVICE_BODY void update_part(const Block& block, const Part& part, const Rule& rule, const Op& op) {
  using Work = Apply<Rule, kCopied, 1>;
  block.each_thread([&](int thread) {
    typename Work::Sums residues = {};
    Work::to(rule, part, thread, block.threads(), residues);
    if constexpr (Rule::kSums != 0) op.report(residues);
  });
}

// One pass over all tensors of the table, each element once. An Op (elementwise.h, updates.h) has
//   stopped()             whether nothing may be changed
//   prepared()            what rules are made from, computed once per block: rule<Real>(row)
//   kTakesDoubles         whether rules of float64 exist
//   kCopied               see Apply
//   report(residues)      for rules with sums: what a thread found
//   finishes(), finish(block, table)   what is left to do when every block is done with its work
template <class Op, class Block>
DEVICE_BODY void run_updates(const Block& block, const Table& table, const Op& op) {
  if (op.stopped()) return;
  const auto prepared = op.prepared();
  for (int64_t i = block.index(); i < table.spans.count; i += block.count()) {
    const Part part = span_at(table, i);
    if constexpr (Op::kTakesDoubles) {
      if (part.row->has_double) {
        update_part<decltype(prepared.template rule<double>(*part.row)), Op::kCopied>(
            block, part, prepared.template rule<double>(*part.row), op);
        continue;
      }
    }
    update_part<decltype(prepared.template rule<float>(*part.row)), Op::kCopied>(block, part,
                                                                                 prepared.template rule<float>(*part.row), op);
  }
  if (op.finishes() && block.is_last(table.grid_ticket, static_cast<uint32_t>(block.count()))) op.finish(block, table);
}

}  // namespace apex::kernels::cuda

// The Ops of optimizer updates. What an Op is: update_pass.h. In all rules that update parameters they are the second value.
namespace apex::kernels::cuda {

// The same rule for all tensors.
template <class Rule>
struct Same {
  Rule same;

  template <class Real>
  DEVICE_BODY Rule rule(const Row&) const {
    return same;
  }
};

template <class Settings>
struct Update : Controlled<Settings> {
  static constexpr int kCopied = 1;
};

// A rule that depends on how the tensors of a list are stored.
template <class Rule, int kList>
struct ByDtype {
  Rule for_half, for_others;

  template <class Real>
  DEVICE_BODY Rule rule(const Row& row) const {
    return row.dtypes[kList] == Dtype::half ? for_half : for_others;
  }
};

struct PlainSgd : Update<rules::SgdSettings> {
  DEVICE_BODY ByDtype<rules::PlainSgd, 1> prepared() const {
    return {rules::plain_sgd(now(), true), rules::plain_sgd(now(), false)};
  }
};

struct MomentumSgd : Update<rules::SgdSettings> {
  DEVICE_BODY ByDtype<rules::MomentumSgd, 1> prepared() const {
    return {rules::momentum_sgd(now(), true), rules::momentum_sgd(now(), false)};
  }
};

struct Adam : Update<rules::AdamSettings> {
  DEVICE_BODY Same<rules::Adam> prepared() const { return {rules::adam(now())}; }
};

struct Adagrad : Update<rules::AdagradSettings> {
  DEVICE_BODY Same<rules::Adagrad> prepared() const { return {rules::adagrad(now())}; }
};

// Takes the norms that NovoGradNorms left, and makes them the running ones.
struct NovoGrad : Update<rules::NovoGradSettings> {
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

  DEVICE_BODY ByNorm prepared() const { return {now(), next}; }
  DEVICE_BODY bool finishes() const { return true; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    block.each_thread([&](int thread) {
      for (int64_t i = thread; i < table.count; i += block.threads()) running[i] = next[i];
      if (thread == 0 && control.step != nullptr) ++*control.step;
    });
  }
};

struct LambStage2 : Update<rules::LambSettings> {
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

  DEVICE_BODY ByNorms prepared() const { return {now(), param_norms, update_norms}; }
};

// Norms are those of the parameters and of the gradients as they are stored.
struct Larc : Update<rules::LarcSettings> {
  const float* grad_norms;
  const float* param_norms;

  struct ByNorms {
    rules::LarcSettings settings;
    const float* grads;
    const float* params;

    template <class Real>
    DEVICE_BODY rules::Larc rule(const Row& row) const {
      const double scale = settings.grad_scale < 0 ? -settings.grad_scale : settings.grad_scale;
      return rules::larc(settings, params[row.index], rules::multiply(scale, static_cast<double>(grads[row.index])));
    }
  };

  DEVICE_BODY ByNorms prepared() const { return {now(), grad_norms, param_norms}; }
};

}  // namespace apex::kernels::cuda
