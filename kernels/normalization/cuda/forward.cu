#include "kernels/normalization/cuda/row_groups.cuh"

namespace apex::kernels::normalization::cuda {

template <class Kind, class Real>
cudaError_t launch_forward(const ForwardArgs<Real>& args, cudaStream_t stream) {
  return launch_rows<ForwardRow, Kind, Real>(args, stream);
}

template cudaError_t launch_forward<Layer, float>(const ForwardArgs<float>&, cudaStream_t);
template cudaError_t launch_forward<Layer, double>(const ForwardArgs<double>&, cudaStream_t);
template cudaError_t launch_forward<Rms, float>(const ForwardArgs<float>&, cudaStream_t);
template cudaError_t launch_forward<Rms, double>(const ForwardArgs<double>&, cudaStream_t);

}  // namespace apex::kernels::normalization::cuda
