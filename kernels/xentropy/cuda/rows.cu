#include "kernels/xentropy/cuda/launch.h"

#include "kernels/cuda/launch.cuh"

namespace apex::kernels::xentropy::cuda {
namespace {

constexpr int kThreads = kLanes;  // per block, which processes one row at a time, one lane per thread
constexpr int kWarp = 32;
constexpr int kStrip = 8;  // logits that a thread loads together

__device__ int thread() { return static_cast<int>(threadIdx.x); }

// Folds kCount values per thread by halves; every thread gets the results. `join` sees the lower lane first. A row has two
// folds with different joins, so a barrier of the other one separates reads of `lanes` from the next row's writes.
template <int kCount, class Join>
__device__ void fold(double (&values)[kCount], const Join& join) {
  static_assert(kThreads == 4 * kWarp);
  using Values = double[kThreads];
  BLOCK_SHARED(Values, lanes, kCount);
#pragma unroll
  for (int k = 0; k < kCount; ++k) lanes[k][thread()] = values[k];
  __syncthreads();
  const int lane = thread() % kWarp;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const double* const from = lanes[k] + lane;
    double value = join(join(from[0], from[2 * kWarp]), join(from[kWarp], from[3 * kWarp]));
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      const double other = __shfl_xor_sync(0xffffffffu, value, apart);
      value = (lane & apart) == 0 ? join(value, other) : join(other, value);
    }
    values[k] = value;
  }
}

template <class Stored>
class Row {
 public:
  using Real = RealFor<Stored>;

  __device__ Row(const Args<Stored>& args, int64_t row)
      : args_(args), row_(row), logits_(args.logits + row * args.classes), label_(args.labels[row]) {}

  __device__ bool is_padding() const { return label_ == args_.padding; }
  __device__ bool is_class() const { return label_ >= 0 && label_ < args_.classes; }

  __device__ void forward() {
    if (is_padding() || !is_class()) return write_loss(filler(), filler());
    load_strip(0);
    const Real most = largest();
    double sums[2] = {0, 0};
    each_strip([&](int64_t, int count) {
#pragma unroll
      for (int j = 0; j < kStrip; ++j) {
        if (j >= count) break;
        sums[0] = add(sums[0], static_cast<double>(exponential(subtract(strip_[j], most))));
        sums[1] = add(sums[1], static_cast<double>(strip_[j]));
      }
    });
    fold(sums, [](double a, double b) { return add(a, b); });
    const double lse = add(static_cast<double>(most), log(sums[0]));
    write_loss(loss_of(lse, logit(label_), sums[1] / static_cast<double>(args_.classes), args_.smoothing), lse);
  }

  __device__ void backward() {
    Stored* const to = args_.grad_logits + row_ * args_.classes;
    if (is_padding() || !is_class()) {
      const Stored fill = rules::Store<Stored>::from(static_cast<Real>(filler()));
      for (int64_t i = thread(); i < args_.classes; i += kThreads) to[i] = fill;
      return;
    }
    const Targets targets = targets_of(args_.smoothing, args_.classes);
    const auto of_label = static_cast<Real>(targets.label), of_others = static_cast<Real>(targets.other);
    const Real grad = args_.grad_losses[row_], lse = args_.log_sum_exp[row_];
    load_strip(0);
    each_strip([&](int64_t first, int count) {
#pragma unroll
      for (int j = 0; j < kStrip; ++j) {
        if (j >= count) break;
        const int64_t i = first + j * kThreads;
        to[i] = rules::Store<Stored>::from(grad_of(grad, strip_[j], lse, i == label_ ? of_label : of_others));
      }
    });
  }

 private:
  static constexpr int64_t kPerStrip = int64_t{kStrip} * kThreads;

  __device__ Real logit(int64_t i) const { return rules::load<Real>(logits_[i]); }
  __device__ double filler() const { return is_padding() ? 0.0 : nan(""); }

  // Loads the thread's logits of the strip that begins at `begin`.
  __device__ void load_strip(int64_t begin) {
    const int64_t first = begin + thread(), left = args_.classes - begin;
#pragma unroll
    for (int j = 0; j < kStrip; ++j) {
      strip_[j] = left >= kPerStrip || first + j * kThreads < args_.classes ? logit(first + j * kThreads) : Real(0);
    }
  }

  // Calls visit(first, count) for each strip, with its logits first, first + kThreads, ... in strip_. The first strip must be
  // loaded; a row of one strip is not loaded again. For a whole strip, `count` is a constant.
  template <class Visit>
  __device__ void each_strip(const Visit& visit) {
    int64_t begin = 0;
    for (; begin + kPerStrip <= args_.classes; begin += kPerStrip) {
      if (begin > 0) load_strip(begin);
      visit(begin + thread(), kStrip);
    }
    if (begin < args_.classes) {
      if (begin > 0) load_strip(begin);
      const int64_t left = args_.classes - begin - thread();
      visit(begin + thread(), left <= 0 ? 0 : static_cast<int>((left + kThreads - 1) / kThreads));
    }
    if (args_.classes > kPerStrip) load_strip(0);
  }

  // Compares in the type of the arithmetic: many GPUs have few float64 units.
  __device__ Real largest() {
    const auto larger = [](auto a, auto b) { return b > a ? b : a; };
    Real most = logit(0);
    each_strip([&](int64_t, int count) {
#pragma unroll
      for (int j = 0; j < kStrip; ++j) {
        if (j < count) most = larger(most, strip_[j]);
      }
    });
    double folded[1] = {static_cast<double>(most)};
    fold(folded, larger);
    return static_cast<Real>(folded[0]);
  }

  __device__ void write_loss(double loss, double lse) const {
    if (thread() != 0) return;
    args_.losses[row_] = static_cast<Real>(loss);
    args_.log_sum_exp[row_] = static_cast<Real>(lse);
  }

  const Args<Stored>& args_;
  int64_t row_;
  const Stored* logits_;
  int64_t label_;
  Real strip_[kStrip];
};

template <class Stored>
__global__ void __launch_bounds__(kThreads) forward_kernel(Args<Stored> args) {
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) Row<Stored>(args, row).forward();
}

template <class Stored>
__global__ void __launch_bounds__(kThreads) backward_kernel(Args<Stored> args) {
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) Row<Stored>(args, row).backward();
}

}  // namespace

template <class Stored>
cudaError_t launch_forward(const Args<Stored>& args, cudaStream_t stream) {
  return kernels::cuda::launch_kernel(forward_kernel<Stored>, kernels::cuda::blocks_for(args.rows), kThreads, stream, args);
}

template <class Stored>
cudaError_t launch_backward(const Args<Stored>& args, cudaStream_t stream) {
  return kernels::cuda::launch_kernel(backward_kernel<Stored>, kernels::cuda::blocks_for(args.rows), kThreads, stream, args);
}

template cudaError_t launch_forward(const Args<float>&, cudaStream_t);
template cudaError_t launch_forward(const Args<double>&, cudaStream_t);
template cudaError_t launch_forward(const Args<rules::Half>&, cudaStream_t);
template cudaError_t launch_forward(const Args<rules::BFloat16>&, cudaStream_t);
template cudaError_t launch_backward(const Args<float>&, cudaStream_t);
template cudaError_t launch_backward(const Args<double>&, cudaStream_t);
template cudaError_t launch_backward(const Args<rules::Half>&, cudaStream_t);
template cudaError_t launch_backward(const Args<rules::BFloat16>&, cudaStream_t);

}  // namespace apex::kernels::xentropy::cuda
