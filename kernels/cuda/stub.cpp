// In place of run.cpp in a library without CUDA. Callers look at handles() first.
#include "kernels/cuda/run.h"

namespace apex::kernels::cuda {
namespace {

[[noreturn]] void refuse() {
  C10_THROW_ERROR(NotImplementedError, "this library was built without CUDA: configure it with APEX_CPP_CUDA=ON");
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

template void run_update(const Call&, const Scale&);
template void run_update(const Call&, const Axpby&);
template void run_update(const Call&, const Copy&);
template void run_update(const Call&, const PlainSgd&);
template void run_update(const Call&, const MomentumSgd&);
template void run_update(const Call&, const Adam&);
template void run_update(const Call&, const Adagrad&);
template void run_update(const Call&, const NovoGrad&);
template void run_update(const Call&, const LambStage2&);
template void run_update(const Call&, const Larc&);
template Table run_sum(const Call&, const Norms<true>&);
template Table run_sum(const Call&, const Norms<false>&);
template Table run_sum(const Call&, const NovoGradNorms<true>&);
template Table run_sum(const Call&, const NovoGradNorms<false>&);
template Table run_sum(const Call&, const LambStage1&);
template Table run_sum(const Call&, const LarcNorms&);

}  // namespace apex::kernels::cuda
