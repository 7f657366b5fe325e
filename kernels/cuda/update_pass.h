#pragma once

#include "kernels/cuda/apply.h"

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
