#include "kernels/xentropy/cpu/xentropy_cpu.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/rows.h"

namespace apex::kernels::xentropy::cpu {
namespace {

using kernels::cpu::Buffers;
using kernels::cpu::RowReader;
using kernels::cpu::RowWriter;

// Minimum elements per thread: half of LibTorch's GRAIN_SIZE, because each row is read twice.
constexpr int64_t kGrain = 16384;

template <class Real>
const RowKernels<Real>& current_rows() {
  return kernels::cpu::of_real<Real>(kernels::cpu::of_current_isa<kPortableRows, kAvx2Rows, kAvx512Rows>());
}

// Runs one pass over the rows: pass.row(i, label), or pass.fill(i, value) if the label is `padding` or not a class.
template <class Pass>
void for_each_row(const Pass& pass, const at::Tensor& logits, const CrossEntropyTargets& targets) {
  const int64_t classes = logits.size(1);
  const auto* const labels = targets.labels.const_data_ptr<int64_t>();
  at::parallel_for(0, logits.size(0), std::max<int64_t>(1, kGrain / classes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t label = labels[i];
      if (label == targets.padding) {
        pass.fill(i, 0);
      } else if (label < 0 || label >= classes) {
        pass.fill(i, std::numeric_limits<double>::quiet_NaN());
      } else {
        pass.row(i, label);
      }
    }
  });
}

template <class Real>
class Forward {
 public:
  explicit Forward(const ForwardCall& call) : call_(call) {}

  void fill(int64_t i, double value) const { write(i, value, value); }

  void row(int64_t i, int64_t label) const {
    const Real* const x = logits_.row(i, buffers_[0]);
    const Real largest = rows_.largest(x, classes_);
    const RowSums sums = rows_.sums(x, largest, classes_);
    const double lse = static_cast<double>(largest) + std::log(sums.exponentials);
    write(i, loss_of(lse, x[label], sums.logits / static_cast<double>(classes_), call_.targets.smoothing), lse);
  }

 private:
  void write(int64_t i, double loss, double lse) const {
    losses_.write_value(i, static_cast<Real>(loss));
    log_sum_exp_.write_value(i, static_cast<Real>(lse));
  }

  const ForwardCall& call_;
  int64_t classes_ = call_.logits.size(1);
  const RowKernels<Real>& rows_ = current_rows<Real>();
  RowReader<Real> logits_{call_.logits, classes_};
  RowWriter<Real> losses_{call_.out.losses, 1}, log_sum_exp_{call_.out.log_sum_exp, 1};
  Buffers<Real> buffers_{1, classes_, call_.logits.size(0)};
};

template <class Real>
class Backward {
 public:
  explicit Backward(const BackwardCall& call) : call_(call) {}

  void fill(int64_t i, double value) const {
    Real* const dx = buffers_[1];
    std::fill_n(dx, classes_, static_cast<Real>(value));
    grad_logits_.write(i, dx);
  }

  void row(int64_t i, int64_t label) const {
    const Targets targets = targets_of(call_.targets.smoothing, classes_);
    const Real* const x = logits_.row(i, buffers_[0]);
    Real* const dx = buffers_[1];
    const Real grad = *grad_losses_.row(i, nullptr), lse = *log_sum_exp_.row(i, nullptr);
    rows_.gradients(x, grad, lse, static_cast<Real>(targets.other), dx, classes_);
    rows_.gradients(x + label, grad, lse, static_cast<Real>(targets.label), dx + label, 1);
    grad_logits_.write(i, dx);
  }

 private:
  const BackwardCall& call_;
  int64_t classes_ = call_.logits.size(1);
  const RowKernels<Real>& rows_ = current_rows<Real>();
  RowReader<Real> logits_{call_.logits, classes_}, grad_losses_{call_.grad_losses, 1}, log_sum_exp_{call_.log_sum_exp, 1};
  RowWriter<Real> grad_logits_{call_.grad_logits, classes_};
  Buffers<Real> buffers_{2, classes_, call_.logits.size(0)};
};

}  // namespace

void forward(const ForwardCall& call) {
  call.logits.scalar_type() == at::kDouble ? for_each_row(Forward<double>(call), call.logits, call.targets)
                                           : for_each_row(Forward<float>(call), call.logits, call.targets);
}

void backward(const BackwardCall& call) {
  call.logits.scalar_type() == at::kDouble ? for_each_row(Backward<double>(call), call.logits, call.targets)
                                           : for_each_row(Backward<float>(call), call.logits, call.targets);
}

}  // namespace apex::kernels::xentropy::cpu
