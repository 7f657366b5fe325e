#include "kernels/normalization/cpu/normalization_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/rows.h"
#include "kernels/normalization/formulas.h"
#include "kernels/rules/rule.h"

namespace apex::kernels::normalization::cpu {
namespace {

using kernels::cpu::Buffers;
using kernels::cpu::real_options;
using kernels::cpu::RowReader;
using kernels::cpu::RowWriter;

// Minimum elements per thread: half of LibTorch's GRAIN_SIZE, because each row is read twice.
constexpr int64_t kGrain = 16384;
constexpr int64_t kColumns = 64;  // columns folded together over the blocks

template <class Real>
const RowKernels<Real>& current_rows(NormKind kind) {
  const KindTables<Real>& tables =
      kernels::cpu::of_real<Real>(kernels::cpu::of_current_isa<kPortableRows, kAvx2Rows, kAvx512Rows>());
  return kind == NormKind::layer ? tables.layer : tables.rms;
}

// Weight and bias as values, converted once for all rows.
template <class Real>
class Affine {
 public:
  Affine(const NormAffine& affine, int64_t size)
      : weight_(affine.weight.defined() ? affine.weight.to(real_options<Real>()) : at::ones({size}, real_options<Real>())),
        bias_(affine.bias.defined() ? affine.bias.to(real_options<Real>()) : at::zeros({size}, real_options<Real>())) {}
  const Real* weight() const { return weight_.const_data_ptr<Real>(); }
  const Real* bias() const { return bias_.const_data_ptr<Real>(); }
  at::Tensor divisors(double eps) const {
    at::Tensor divisors = at::empty_like(weight_);
    const auto smallest = static_cast<Real>(eps);
    std::transform(weight(), weight() + weight_.numel(), divisors.mutable_data_ptr<Real>(),
                   [&](Real value) { return divisor(value, smallest); });
    return divisors;
  }

 private:
  at::Tensor weight_, bias_;
};

template <class Real>
void forward_as(const ForwardCall& call) {
  const int64_t size = call.shape.size;
  const RowKernels<Real>& rows = current_rows<Real>(call.kind);
  const Affine<Real> affine(call.affine, size);
  const RowReader<Real> input(call.input, size);
  const RowWriter<Real> output(call.out.output, size);
  const RowWriter<Real> mean(call.out.mean, 1), inv_std(call.out.inv_std, 1);
  const Buffers<Real> buffers(2, size, call.shape.rows);
  at::parallel_for(0, call.shape.rows, std::max<int64_t>(1, kGrain / size), [&](int64_t begin, int64_t end) {
    Real* const y = buffers[1];
    for (int64_t i = begin; i < end; ++i) {
      const Real* const x = input.row(i, buffers[0]);
      const RowStatistics<Real> statistics = rows.statistics(x, size, static_cast<Real>(call.eps));
      if (mean.defined()) mean.write_value(i, statistics.mean);
      inv_std.write_value(i, statistics.inv_std);
      rows.forward(x, statistics, affine.weight(), affine.bias(), y, size);
      output.write(i, y);
    }
  });
}

// One backward pass. Each block accumulates its rows in its own row of `weight_sums_` and `bias_sums_`.
template <class Real>
class Backward {
 public:
  explicit Backward(const BackwardCall& call)
      : call_(call),
        affine_(call.affine, size_),
        divisors_(call.saved.is_output ? affine_.divisors(call.saved.eps) : at::Tensor()),
        block_rows_(rows_per_block(call.shape.rows, size_)),
        blocks_((call.shape.rows + block_rows_ - 1) / block_rows_),
        weight_sums_(sums_for(call.out.weight)),
        bias_sums_(sums_for(call.out.bias)) {}

  void run() const {
    at::parallel_for(0, blocks_, std::max<int64_t>(1, kGrain / (block_rows_ * size_)), [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * block_rows_, last = std::min(first + block_rows_, call_.shape.rows);
        for (int64_t i = first; i < last; ++i) run_row(i, block);
      }
    });
    fold_blocks(weight_sums_, call_.out.weight);
    fold_blocks(bias_sums_, call_.out.bias);
  }

 private:
  at::Tensor sums_for(const at::Tensor& grad) const {
    return grad.defined() ? at::zeros({blocks_, size_}, real_options<Real>()) : at::Tensor();
  }

  void run_row(int64_t i, int64_t block) const {
    Real* const x_hat = buffers_[2];
    Real* const dx = buffers_[3];
    const Real* const dy = grad_output_.row(i, buffers_[0]);
    const Real inv_std = *inv_std_.row(i, nullptr);
    const GradMeans<Real> means = means_of(i, dy, {mean_.defined() ? *mean_.row(i, nullptr) : Real(0), inv_std}, x_hat);
    // Unneeded sums go to a scratch buffer.
    rows_.gradients(dy, affine_.weight(), x_hat, means, inv_std, dx, sums_row(weight_sums_, block, 4),
                    sums_row(bias_sums_, block, 5), size_);
    if (grad_input_.defined()) grad_input_.write(i, dx);
  }

  GradMeans<Real> means_of(int64_t i, const Real* dy, RowStatistics<Real> row, Real* x_hat) const {
    const Real* const saved = input_or_output_.row(i, buffers_[1]);
    if (!call_.saved.is_output) return rows_.means_by_input(saved, row, dy, affine_.weight(), x_hat, size_);
    return rows_.means_by_output(saved, divisors_.template const_data_ptr<Real>(), affine_.bias(), dy, affine_.weight(), x_hat,
                                 size_);
  }

  Real* sums_row(const at::Tensor& sums, int64_t block, int buffer) const {
    return sums.defined() ? sums.mutable_data_ptr<Real>() + block * size_ : buffers_[buffer];
  }

  // Adds up the blocks in the order that formulas.h defines, some columns at a time.
  void fold_blocks(const at::Tensor& sums, const at::Tensor& grad) const {
    if (!grad.defined()) return;
    const Real* const from = sums.const_data_ptr<Real>();
    const at::Tensor row = at::empty({size_}, real_options<Real>());
    Real* const totals = row.mutable_data_ptr<Real>();
    at::parallel_for(0, size_, std::max(kColumns, kGrain / blocks_), [&](int64_t begin, int64_t end) {
      for (int64_t column = begin; column < end; column += kColumns) {
        fold_columns(from, totals, column, std::min(column + kColumns, end));
      }
    });
    RowWriter<Real>(grad, size_).write(0, totals);
  }

  void fold_columns(const Real* sums, Real* totals, int64_t begin, int64_t end) const {
    const auto used = static_cast<int>(std::min<int64_t>(blocks_, kBlockLanes));
    alignas(64) Real lanes[kBlockLanes][kColumns] = {};
    for (int64_t b = 0; b < blocks_; ++b) {
      for (int64_t c = begin; c < end; ++c) lanes[b % kBlockLanes][c - begin] += sums[b * size_ + c];
    }
    for (int width = rules::folded_lanes(used) / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) {
        for (int64_t c = 0; c < kColumns; ++c) lanes[lane][c] += lanes[lane + width][c];
      }
    }
    std::copy_n(lanes[0], end - begin, totals + begin);
  }

  const BackwardCall& call_;
  int64_t size_ = call_.shape.size;
  const RowKernels<Real>& rows_ = current_rows<Real>(call_.kind);
  Affine<Real> affine_;
  at::Tensor divisors_;
  int64_t block_rows_, blocks_;
  at::Tensor weight_sums_, bias_sums_;
  RowReader<Real> grad_output_{call_.grad_output, size_}, input_or_output_{call_.saved.input_or_output, size_};
  RowReader<Real> mean_{call_.saved.mean, 1}, inv_std_{call_.saved.inv_std, 1};
  RowWriter<Real> grad_input_{call_.out.input, size_};
  Buffers<Real> buffers_{6, size_, call_.shape.rows};
};

}  // namespace

void forward(const ForwardCall& call) {
  call.input.scalar_type() == at::kDouble ? forward_as<double>(call) : forward_as<float>(call);
}

void backward(const BackwardCall& call) {
  // The dtype of the statistics is the type of the arithmetic.
  if (call.saved.inv_std.scalar_type() == at::kDouble) {
    Backward<double>(call).run();
  } else {
    Backward<float>(call).run();
  }
}

}  // namespace apex::kernels::normalization::cpu
