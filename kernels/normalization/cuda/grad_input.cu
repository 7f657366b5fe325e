#include "kernels/normalization/cuda/row_groups.cuh"

namespace apex::kernels::normalization::cuda {

template <class Kind, class Real>
cudaError_t launch_grad_input(const BackwardArgs<Real>& args, cudaStream_t stream) {
  return launch_rows<BackwardRow, Kind, Real>(args, stream);
}

template cudaError_t launch_grad_input<Layer, float>(const BackwardArgs<float>&, cudaStream_t);
template cudaError_t launch_grad_input<Layer, double>(const BackwardArgs<double>&, cudaStream_t);
template cudaError_t launch_grad_input<Rms, float>(const BackwardArgs<float>&, cudaStream_t);
template cudaError_t launch_grad_input<Rms, double>(const BackwardArgs<double>&, cudaStream_t);

}  // namespace apex::kernels::normalization::cuda
