#include "suites.h"

namespace bench {

const std::vector<Suite>& suites() {
  static const std::vector<Suite> all{
      {"casts", "what amp's cast engine (O1, O4) costs: off, per operator, and per training step, beside torch's autocast",
       run_casts},
      {"compile", "what the library's headers add to the processor time of compiling a user's file (5 rounds, 15 minutes)",
       run_compile, kNoMore, 5},
      {"contrib", "what softmax cross entropy, gradient clipping, MLP and FusedDense take, beside what torch has for the same",
       run_contrib, kDevice},
      {"convolution",
       "what BF16 convolutions and their gradients take on a CPU with AVX512-BF16, beside torch's in BF16 and FP32",
       run_convolution},
      {"ddp",
       "what reducing gradients over 2 processes takes in a step, beside c10d's Reducer and an all-reduce after backward",
       run_ddp},
      {"kernels",
       "what the multi-tensor kernels take, beside torch's fused, foreach and for-loop optimizers and the memory bound",
       run_kernels, kDevice},
      {"pages", "what huge pages under large CPU tensors save of a training step at every level", run_pages, kQuick},
      {"statistics", "what amp::statistics takes, beside torch's operators for its figures and the memory bound of one pass",
       run_statistics, kDevice},
      {"step", "what a whole Adam step of O2 and O5 takes, beside the sequence that torch offers and the memory bound",
       run_step, kDevice},
      {"train", "what whole training steps take, and their memory: plain, torch's autocast, O0 to O5 (9 rounds)", run_train,
       kDevice | kQuick, 9},
  };
  return all;
}

}  // namespace bench
