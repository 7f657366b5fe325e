#include "kernels/xentropy/cuda/launch.h"

#include "kernels/cuda/device.cuh"

namespace apex::kernels::xentropy::cuda {
namespace {

constexpr int kThreads = kLanes;  // per block, which processes one row at a time, one lane per thread

// Folds one value per thread by halves; every thread gets the result.
template <class Join>
__device__ double fold(double mine, const Join& join) {
  BLOCK_SHARED(double, lanes, kThreads);
  __syncthreads();  // the previous fold has been read
  lanes[threadIdx.x] = mine;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) lanes[threadIdx.x] = join(lanes[threadIdx.x], lanes[threadIdx.x + width]);
    __syncthreads();
  }
  return lanes[0];
}

template <class Stored, class Loss>
class Row {
 public:
  using Real = RealFor<Stored>;

  __device__ Row(const Args<Stored, Loss>& args, int64_t row)
      : args_(args), row_(row), logits_(args.logits + row * args.classes), label_(args.labels[row]) {}

  __device__ bool is_padding() const { return label_ == args_.padding; }
  __device__ bool is_class() const { return label_ >= 0 && label_ < args_.classes; }

  __device__ void forward() const {
    if (is_padding() || !is_class()) return write_loss(filler(), filler());
    const double most = largest();
    double exponentials = 0, logits = 0;
    each_class([&](int64_t i) {
      exponentials = add(exponentials, static_cast<double>(exponential(subtract(logit(i), static_cast<Real>(most)))));
      logits = add(logits, static_cast<double>(logit(i)));
    });
    const auto sum = [](double a, double b) { return add(a, b); };
    const RowSums sums{fold(exponentials, sum), fold(logits, sum)};
    const double lse = add(most, log(sums.exponentials));
    write_loss(loss_of(lse, logit(label_), sums.logits / static_cast<double>(args_.classes), args_.smoothing), lse);
  }

  __device__ void backward() const {
    Stored* const to = args_.grad_logits + row_ * args_.classes;
    if (is_padding() || !is_class()) {
      each_class([&](int64_t i) { to[i] = rules::Store<Stored>::from(static_cast<Real>(filler())); });
      return;
    }
    const Targets targets = targets_of(args_.smoothing, args_.classes);
    const Real grad = rules::load<Real>(args_.grad_losses[row_]), lse = args_.log_sum_exp[row_];
    each_class([&](int64_t i) {
      const auto target = static_cast<Real>(i == label_ ? targets.label : targets.other);
      to[i] = rules::Store<Stored>::from(grad_of(grad, logit(i), lse, target));
    });
  }

 private:
  __device__ Real logit(int64_t i) const { return rules::load<Real>(logits_[i]); }
  __device__ double filler() const { return is_padding() ? 0.0 : nan(""); }

  template <class Visit>
  __device__ void each_class(const Visit& visit) const {
    for (int64_t i = threadIdx.x; i < args_.classes; i += kThreads) visit(i);
  }

  // Compares in the type of the arithmetic: many GPUs have few float64 units.
  __device__ double largest() const {
    const auto larger = [](auto a, auto b) { return b > a ? b : a; };
    Real most = logit(0);
    each_class([&](int64_t i) { most = larger(most, logit(i)); });
    return fold(static_cast<double>(most), larger);
  }

  __device__ void write_loss(double loss, double lse) const {
    if (threadIdx.x != 0) return;
    args_.losses[row_] = rules::Store<Loss>::from(static_cast<Real>(loss));
    args_.log_sum_exp[row_] = static_cast<Real>(lse);
  }

  const Args<Stored, Loss>& args_;
  int64_t row_;
  const Stored* logits_;
  int64_t label_;
};

template <class Stored, class Loss>
__global__ void __launch_bounds__(kThreads) forward_kernel(Args<Stored, Loss> args) {
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) Row<Stored, Loss>(args, row).forward();
}

template <class Stored, class Loss>
__global__ void __launch_bounds__(kThreads) backward_kernel(Args<Stored, Loss> args) {
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) Row<Stored, Loss>(args, row).backward();
}

unsigned blocks_for(int64_t rows) {
  return static_cast<unsigned>(rows < kernels::cuda::kMostBlocks ? rows : kernels::cuda::kMostBlocks);
}

}  // namespace

template <class Stored, class Loss>
cudaError_t launch_forward(const Args<Stored, Loss>& args, cudaStream_t stream) {
  return kernels::cuda::launch_kernel(forward_kernel<Stored, Loss>, blocks_for(args.rows), kThreads, stream, args);
}

template <class Stored, class Loss>
cudaError_t launch_backward(const Args<Stored, Loss>& args, cudaStream_t stream) {
  return kernels::cuda::launch_kernel(backward_kernel<Stored, Loss>, blocks_for(args.rows), kThreads, stream, args);
}

template cudaError_t launch_forward(const Args<float, float>&, cudaStream_t);
template cudaError_t launch_forward(const Args<double, double>&, cudaStream_t);
template cudaError_t launch_forward(const Args<rules::Half, rules::Half>&, cudaStream_t);
template cudaError_t launch_forward(const Args<rules::Half, float>&, cudaStream_t);
template cudaError_t launch_forward(const Args<rules::BFloat16, rules::BFloat16>&, cudaStream_t);
template cudaError_t launch_forward(const Args<rules::BFloat16, float>&, cudaStream_t);
template cudaError_t launch_backward(const Args<float, float>&, cudaStream_t);
template cudaError_t launch_backward(const Args<double, double>&, cudaStream_t);
template cudaError_t launch_backward(const Args<rules::Half, rules::Half>&, cudaStream_t);
template cudaError_t launch_backward(const Args<rules::Half, float>&, cudaStream_t);
template cudaError_t launch_backward(const Args<rules::BFloat16, rules::BFloat16>&, cudaStream_t);
template cudaError_t launch_backward(const Args<rules::BFloat16, float>&, cudaStream_t);

}  // namespace apex::kernels::xentropy::cuda
