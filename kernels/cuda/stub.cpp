// Replaces run.cpp in a library without CUDA. Callers check handles() first.
#include "kernels/cuda/run.h"

namespace apex::kernels::cuda {
namespace {

[[noreturn]] void refuse() {
  TORCH_INTERNAL_ASSERT(false, "this library was built without CUDA: configure it with APEX_CPP_CUDA=ON");
}

}  // namespace

bool handles(c10::Device) { return false; }

template <class Op>
void run_update(const Call&, const Op&) {
  refuse();
}

template <class Op>
Table run_sum(const Call&, const Op&) {
  refuse();
}

void run_update_scale(c10::Device, const rules::ScaleUpdate&, const LossScaleAddresses&) { refuse(); }

APEX_CPP_DEFINE_RUNS

}  // namespace apex::kernels::cuda
