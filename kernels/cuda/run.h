#pragma once

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/multi_tensor_cuda.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/updates.h"

// Launches for a call's tensors. run.cpp implements them with CUDA, stub.cpp without; tests have blocks that run on the host.
namespace apex::kernels::cuda {

// One launch over the call's tensors on the current stream of their device. For each Op of elementwise.h and updates.h.
template <class Op>
void run_update(const Call& call, const Op& op);

// The same for each Op of norms.h. Returns the table that holds the sums until the next launch over the same tensors on the
// same stream.
template <class Op>
Table run_sum(const Call& call, const Op& op);

void run_update_scale(c10::Device device, const rules::ScaleUpdate& update, const LossScaleAddresses& addresses);

}  // namespace apex::kernels::cuda

// Instantiates run_update() and run_sum() for every Op. For the files that implement them, in namespace apex::kernels::cuda.
#define APEX_CPP_DEFINE_RUN_UPDATE(Op) template void run_update(const Call&, const Op&);
#define APEX_CPP_DEFINE_RUN_SUM(Op) template Table run_sum(const Call&, const Op&);
#define APEX_CPP_DEFINE_RUNS                              \
  APEX_CPP_FOR_EACH_UPDATE_OP(APEX_CPP_DEFINE_RUN_UPDATE) \
  APEX_CPP_FOR_EACH_SUM_OP(APEX_CPP_DEFINE_RUN_SUM)
