#pragma once
// DistributedDataParallel passes inside scale_loss blocks.
#include <apex_cpp/amp.h>
#include <apex_cpp/parallel.h>
#include <torch/torch.h>

#include <string>

#include "tests/distributed/ddp_models.h"
#include "tests/distributed/ranks.h"

namespace apex::testing {

inline void expect_same_on_all_ranks(const std::string& text, const std::string& what) {
  apex::parallel::expect_same(apex::parallel::default_process_group(), text, what);
}

// Inputs of -1, 0 and 1. One pass has gradients of at most 30 per rank, so sums over ranks and three passes, times a loss scale
// of 4, are whole numbers below 2048 and exact in float16.
inline torch::Tensor small_part(int pass, int of_rank) { return part_of_batch(pass, of_rank).remainder(3).sub(1); }

template <class Net, class Opt>
void backward_in_block(apex::parallel::DistributedDataParallel<Net>& ddp, Opt& opt, const torch::Tensor& input) {
  const torch::Tensor loss = ddp(input).sum();
  auto scaled_loss = amp::scale_loss(loss, opt);
  scaled_loss.backward();
  scaled_loss.finish();
}

}  // namespace apex::testing
