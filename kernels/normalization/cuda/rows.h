#pragma once

#include "kernels/normalization/cuda/elements.h"

// Kernel bodies that process one row each with a group of threads: one slot if the row has one segment, otherwise all slots.
// A Group has
//   kThreads                 the number of threads
//   PerThread<T>             one T per thread, indexed by the thread's number
//   each_thread(work)        calls work(thread) on every thread
//   sums(lanes)              the sums of several PerThread<Lanes<Real>> in the order that formulas.h defines, on every thread
// Tests run the same bodies with a group that loops over its threads.
namespace apex::kernels::normalization::cuda {

template <class Real>
struct ForwardArgs {
  int64_t rows, size;
  Source input, weight, bias;
  Target output;
  Real* mean;  // null for RMS
  Real* inv_std;
  Real eps;
  Mix mix;
};

template <class Real>
struct BackwardArgs {
  int64_t rows, size;
  Source grad_output, input_or_output, weight, bias;
  const Real* mean;  // null for RMS and if x_hat is recovered from the output
  const Real* inv_std;
  bool from_output;
  Real eps;
  Target grad_input;
  Mix mix;
};

template <class Real>
struct Lanes {
  Real values[kPair];
};

template <class Real, int kCount>
struct Totals {
  Real of[kCount];
};

// The pairs of `thread` in segment `segment` of a row. A thread of a group takes every kThreads / kSlotThreads-th segment.
DEVICE_BODY inline Walk segment_walk(int64_t row_start, int64_t size, int64_t segment, int thread) {
  const int64_t column = segment * kSegment + thread % kSlotThreads * kPair;
  const int left = columns_left(size, column);
  return {row_start + column, kLanes, column, left, kLanes, left > 0 ? (left + kLanes - 1) / kLanes : 0};
}

// The same columns in a tensor with a single row.
DEVICE_BODY inline Walk in_one_row(Walk walk) {
  walk.first = walk.column;
  return walk;
}

// Visits the thread's segments. A group of one slot only gets rows of one segment.
template <class Group, class Visit>
DEVICE_BODY void each_segment(int64_t row_start, int64_t size, int thread, const Visit& visit) {
  if constexpr (Group::kThreads == kSlotThreads) {
    visit(segment_walk(row_start, size, 0, thread));
  } else {
    for (int64_t segment = thread / kSlotThreads; segment * kSegment < size; segment += Group::kThreads / kSlotThreads) {
      visit(segment_walk(row_start, size, segment, thread));
    }
  }
}

// Calls visit(i, k) for each valid element of the walk.
template <class Access, class Visit>
DEVICE_BODY void each_element(const Walk& walk, const Visit& visit) {
  UNROLL for (int i = 0; i < kStrips; ++i) {
    const int valid = Access::valid(walk, i);
    if (valid == 0) break;
    UNROLL for (int k = 0; k < kPair; ++k) {
      if (k < valid) visit(i, k);
    }
  }
}

// True if a thread has at most one segment, whose values stay in its registers between passes.
template <class Group>
DEVICE_BODY bool fits(int64_t size) {
  return Group::kThreads == kSlotThreads || size <= int64_t{Group::kThreads} / kSlotThreads * kSegment;
}

template <class Access>
DEVICE_BODY void load(const Source& source, const Walk& walk, Strips<typename Access::Real>& strips) {
  typename Access::Fetched fetched;
  Access::fetch(source, walk, fetched);
  UNROLL for (int i = 0; i < kStrips; ++i) {
    UNROLL for (int k = 0; k < kPair; ++k) strips.values[i][k] = Access::value(fetched, i, k);
  }
}

// The forward pass of one row.
template <class Kind, class Access, class Group>
class ForwardRow {
  using Real = typename Access::Real;

 public:
  DEVICE_BODY ForwardRow(Group& group, const ForwardArgs<Real>& args, int64_t row)
      : group_(group), args_(args), row_(row), start_(row * args.size) {}

  DEVICE_BODY void run() {
    group_.each_thread([&](int t) { load_first(t); });
    const RowStatistics<Real> row = statistics();
    group_.each_thread([&](int t) { write(t, row); });
  }

 private:
  DEVICE_BODY RowStatistics<Real> statistics() {
    const auto size = static_cast<Real>(args_.size);
    using OfThreads = typename Group::template PerThread<Lanes<Real>>;
    Centre<Real> row{};
    if constexpr (Kind::kCentered) {
      OfThreads plain[1], both[2];
      group_.each_thread([&](int t) { add_up(t, plain[0][t]); });
      row.mean = divide(group_.sums(plain).of[0], size);
      group_.each_thread([&](int t) { add_up_deviations(t, row.mean, both[0][t], both[1][t]); });
      const auto sums = group_.sums(both);
      row = centre(row.mean, sums.of[0], sums.of[1], size);
    } else {
      OfThreads unused, squares[1];
      group_.each_thread([&](int t) { add_up_deviations(t, row.mean, unused[t], squares[0][t]); });
      row.squares = group_.sums(squares).of[0];
    }
    return {row.mean, inverse_std(row.squares, size, args_.eps)};
  }

  DEVICE_BODY void load_first(int t) {
    if (fits<Group>(args_.size)) load<Access>(args_.input, segment_walk(start_, args_.size, t / kSlotThreads, t), x_[t]);
  }

  template <class Visit>
  DEVICE_BODY void each_loaded_segment(int t, const Visit& visit) {
    each_segment<Group>(start_, args_.size, t, [&](const Walk& walk) {
      if (!fits<Group>(args_.size)) load<Access>(args_.input, walk, x_[t]);
      visit(walk);
    });
  }

  DEVICE_BODY void add_up(int t, Lanes<Real>& plain) {
    plain = {};
    each_loaded_segment(t, [&](const Walk& walk) {
      each_element<Access>(walk, [&](int i, int k) { plain.values[k] = add(plain.values[k], x_[t].values[i][k]); });
    });
  }

  DEVICE_BODY void add_up_deviations(int t, Real mean, Lanes<Real>& plain, Lanes<Real>& squares) {
    plain = {};
    squares = {};
    each_loaded_segment(t, [&](const Walk& walk) {
      each_element<Access>(walk, [&](int i, int k) {
        const Real from_mean = deviation<Kind>(x_[t].values[i][k], mean);
        if constexpr (Kind::kCentered) plain.values[k] = add(plain.values[k], from_mean);
        squares.values[k] = add(squares.values[k], multiply(from_mean, from_mean));
      });
    });
  }

  DEVICE_BODY void write(int t, const RowStatistics<Real>& row) {
    if (t == 0 && args_.mean != nullptr) args_.mean[row_] = row.mean;
    if (t == 0) args_.inv_std[row_] = row.inv_std;
    each_loaded_segment(t, [&](const Walk& walk) {
      typename Access::Fetched weight, bias;
      Access::fetch(args_.weight, in_one_row(walk), weight, Real(1));
      if constexpr (Kind::kCentered) Access::fetch(args_.bias, in_one_row(walk), bias);
      UNROLL for (int i = 0; i < kStrips; ++i) {
        if (i >= walk.count) break;
        UNROLL for (int k = 0; k < kPair; ++k) {
          const Real x_hat = normalized<Kind>(x_[t].values[i][k], row.mean, row.inv_std);
          const Real shift = Kind::kCentered ? Access::value(bias, i, k) : Real(0);
          x_[t].values[i][k] = output<Kind>(x_hat, Access::value(weight, i, k), shift);
        }
      }
      Access::store(args_.output, walk, x_[t]);
    });
  }

  Group& group_;
  const ForwardArgs<Real>& args_;
  int64_t row_, start_;
  typename Group::template PerThread<Strips<Real>> x_;
};

// The saved statistics of a row.
template <class Real>
DEVICE_BODY RowStatistics<Real> saved_statistics(const BackwardArgs<Real>& args, int64_t row) {
  return {args.mean == nullptr ? Real(0) : args.mean[row], args.inv_std[row]};
}

// x_hat of the output.
template <class Kind, class Access, class Real>
DEVICE_BODY void recover(const BackwardArgs<Real>& args, const typename Access::Fetched& output, const Walk& columns,
                         Strips<Real>& x_hat) {
  typename Access::Fetched weight, bias;
  Access::fetch(args.weight, columns, weight, Real(1));
  if constexpr (Kind::kCentered) Access::fetch(args.bias, columns, bias);
  UNROLL for (int i = 0; i < kStrips; ++i) {
    UNROLL for (int k = 0; k < kPair; ++k) {
      const Real by = divisor(Access::value(weight, i, k), args.eps);
      const Real shift = Kind::kCentered ? Access::value(bias, i, k) : Real(0);
      x_hat.values[i][k] = recovered<Kind>(Access::value(output, i, k), by, shift);
    }
  }
}

// x_hat of what the forward pass saved. Element (i, k) belongs to row `row_of(i)`; `columns` walks the columns in one row.
template <class Kind, class Access, class RowOf>
DEVICE_BODY void normalize(const BackwardArgs<typename Access::Real>& args, const typename Access::Fetched& saved,
                           const Walk& columns, const RowOf& row_of, Strips<typename Access::Real>& x_hat) {
  using Real = typename Access::Real;
  if constexpr (Access::kMayRecover) {
    if (args.from_output) return recover<Kind, Access>(args, saved, columns, x_hat);
  }
  UNROLL for (int i = 0; i < kStrips; ++i) {
    const RowStatistics<Real> row = row_of(i);
    UNROLL for (int k = 0; k < kPair; ++k) {
      x_hat.values[i][k] = normalized<Kind>(Access::value(saved, i, k), row.mean, row.inv_std);
    }
  }
}

// The input gradient of one row.
template <class Kind, class Access, class Group>
class BackwardRow {
  using Real = typename Access::Real;

 public:
  DEVICE_BODY BackwardRow(Group& group, const BackwardArgs<Real>& args, int64_t row)
      : group_(group), args_(args), row_(row), start_(row * args.size) {}

  DEVICE_BODY void run() {
    using OfThreads = typename Group::template PerThread<Lanes<Real>>;
    const auto size = static_cast<Real>(args_.size);
    GradMeans<Real> means{};
    if constexpr (Kind::kCentered) {
      OfThreads both[2];
      group_.each_thread([&](int t) { add_up(t, both[0][t], both[1][t]); });
      const auto sums = group_.sums(both);
      means = {divide(sums.of[0], size), divide(sums.of[1], size)};
    } else {
      OfThreads unused, with_x_hat[1];
      group_.each_thread([&](int t) { add_up(t, unused[t], with_x_hat[0][t]); });
      means.with_x_hat = divide(group_.sums(with_x_hat).of[0], size);
    }
    group_.each_thread([&](int t) { write(t, means); });
  }

 private:
  // Loads g and x_hat of a segment.
  DEVICE_BODY void load_segment(const Walk& walk, int t) {
    typename Access::Fetched grad_output, saved, weight;
    Access::fetch(args_.grad_output, walk, grad_output);
    Access::fetch(args_.input_or_output, walk, saved);
    Access::fetch(args_.weight, in_one_row(walk), weight, Real(1));
    const RowStatistics<Real> row = saved_statistics(args_, row_);
    normalize<Kind, Access>(
        args_, saved, in_one_row(walk), [&](int) { return row; }, x_hat_[t]);
    UNROLL for (int i = 0; i < kStrips; ++i) {
      UNROLL for (int k = 0; k < kPair; ++k) {
        g_[t].values[i][k] = multiply(Access::value(grad_output, i, k), Access::value(weight, i, k));
      }
    }
  }

  DEVICE_BODY void add_up(int t, Lanes<Real>& plain, Lanes<Real>& with_x_hat) {
    plain = {};
    with_x_hat = {};
    each_segment<Group>(start_, args_.size, t, [&](const Walk& walk) {
      load_segment(walk, t);
      each_element<Access>(walk, [&](int i, int k) {
        const Real g = g_[t].values[i][k];
        plain.values[k] = add(plain.values[k], g);
        with_x_hat.values[k] = add(with_x_hat.values[k], multiply(g, x_hat_[t].values[i][k]));
      });
    });
  }

  DEVICE_BODY void write(int t, const GradMeans<Real>& means) {
    const Real inv_std = args_.inv_std[row_];
    each_segment<Group>(start_, args_.size, t, [&](const Walk& walk) {
      if (!fits<Group>(args_.size)) load_segment(walk, t);
      UNROLL for (int i = 0; i < kStrips; ++i) {
        if (i >= walk.count) break;
        UNROLL for (int k = 0; k < kPair; ++k) {
          g_[t].values[i][k] =
              grad_input<Kind>(g_[t].values[i][k], x_hat_[t].values[i][k], means.plain, means.with_x_hat, inv_std);
        }
      }
      Access::store(args_.grad_input, walk, g_[t]);
    });
  }

  Group& group_;
  const BackwardArgs<Real>& args_;
  int64_t row_, start_;
  typename Group::template PerThread<Strips<Real>> g_, x_hat_;
};

}  // namespace apex::kernels::normalization::cuda
