#include "suites.h"

namespace bench {

const std::vector<Suite>& suites() {
  static const std::vector<Suite> all{
      {"casts", "cost of the cast engine (O1, O4) when off, per operator and per training step, compared with torch's autocast",
       run_casts},
      {"compile", "processor time that the headers add to the compilation of a user's file (5 rounds, 15 minutes)", run_compile,
       kNoMore, 5},
      {"contrib", "time of softmax cross entropy, gradient clipping, MLP and FusedDense, compared with torch", run_contrib,
       kDevice},
      {"convolution",
       "time of BF16 convolutions and their gradients on a CPU with AVX512-BF16, compared with torch in BF16 and FP32",
       run_convolution},
      {"ddp", "time of reducing gradients over 2 processes, compared with c10d's Reducer and an all-reduce after backward",
       run_ddp},
      {"kernels",
       "time of the multi-tensor kernels, compared with torch's fused, foreach and for-loop optimizers and the memory bound",
       run_kernels, kDevice},
      {"pages", "training steps at every level with and without huge pages for large CPU tensors", run_pages, kQuick},
      {"statistics",
       "time of amp::statistics, compared with torch's operators for the same figures and the memory bound of one pass",
       run_statistics, kDevice},
      {"step", "time of a whole Adam step of O2 and O5, compared with torch's sequence of calls and the memory bound", run_step,
       kDevice},
      {"train", "time and memory of whole training steps: without amp, torch's autocast, O0 to O6 (9 rounds)", run_train,
       kDevice | kQuick, 9},
  };
  return all;
}

}  // namespace bench
