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
  return {row_start + column, kLanes, column, columns_left(size, column), kLanes, kStrips};
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
template <class Visit>
DEVICE_BODY void each_element(const Walk& walk, const Visit& visit) {
  UNROLL for (int i = 0; i < kStrips; ++i) {
    const int valid = walk.valid(i);
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

// The forward pass of one row.
template <class Kind, class Real, class Group>
class ForwardRow {
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
    if (fits<Group>(args_.size)) load(args_.input, segment_walk(start_, args_.size, t / kSlotThreads, t), x_[t]);
  }

  template <class Visit>
  DEVICE_BODY void each_loaded_segment(int t, const Visit& visit) {
    each_segment<Group>(start_, args_.size, t, [&](const Walk& walk) {
      if (!fits<Group>(args_.size)) load(args_.input, walk, x_[t]);
      visit(walk);
    });
  }

  DEVICE_BODY void add_up(int t, Lanes<Real>& plain) {
    plain = {};
    each_loaded_segment(t, [&](const Walk& walk) {
      each_element(walk, [&](int i, int k) { plain.values[k] = add(plain.values[k], x_[t].values[i][k]); });
    });
  }

  DEVICE_BODY void add_up_deviations(int t, Real mean, Lanes<Real>& plain, Lanes<Real>& squares) {
    plain = {};
    squares = {};
    each_loaded_segment(t, [&](const Walk& walk) {
      each_element(walk, [&](int i, int k) {
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
      Strips<Real> weight, bias{};
      load(args_.weight, in_one_row(walk), weight, Real(1));
      if constexpr (Kind::kCentered) load(args_.bias, in_one_row(walk), bias);
      UNROLL for (int i = 0; i < kStrips; ++i) {
        if (walk.valid(i) == 0) break;
        UNROLL for (int k = 0; k < kPair; ++k) {
          const Real x_hat = normalized<Kind>(x_[t].values[i][k], row.mean, row.inv_std);
          x_[t].values[i][k] = output<Kind>(x_hat, weight.values[i][k], bias.values[i][k]);
        }
      }
      store(args_.output, walk, x_[t]);
    });
  }

  Group& group_;
  const ForwardArgs<Real>& args_;
  int64_t row_, start_;
  typename Group::template PerThread<Strips<Real>> x_;
};

// Replaces the output by x_hat.
template <class Kind, class Real>
DEVICE_BODY void recover(const BackwardArgs<Real>& args, const Strips<Real>& weight, const Walk& columns,
                         Strips<Real>& output) {
  Strips<Real> bias{};
  if constexpr (Kind::kCentered) load(args.bias, columns, bias);
  UNROLL for (int i = 0; i < kStrips; ++i) {
    UNROLL for (int k = 0; k < kPair; ++k) {
      const Real by = divisor(weight.values[i][k], args.eps);
      output.values[i][k] = recovered<Kind>(output.values[i][k], by, bias.values[i][k]);
    }
  }
}

// Replaces input by x_hat. Pair i of the walk belongs to row `row + i` if `rows_apart`, otherwise to `row`.
template <class Kind, class Real>
DEVICE_BODY void normalize(const BackwardArgs<Real>& args, int count, int64_t row, bool rows_apart, Strips<Real>& input) {
  UNROLL for (int i = 0; i < kStrips; ++i) {
    if (i >= count) break;
    const int64_t of_row = rows_apart ? row + i : row;
    const Real mean = args.mean == nullptr ? Real(0) : args.mean[of_row];
    const Real inv_std = args.inv_std[of_row];
    UNROLL for (int k = 0; k < kPair; ++k) input.values[i][k] = normalized<Kind>(input.values[i][k], mean, inv_std);
  }
}

// The input gradient of one row.
template <class Kind, class Real, class Group>
class BackwardRow {
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
    Strips<Real> weight;
    load(args_.grad_output, walk, g_[t]);
    load(args_.weight, in_one_row(walk), weight, Real(1));
    load(args_.input_or_output, walk, x_hat_[t]);
    if (args_.from_output) {
      recover<Kind>(args_, weight, in_one_row(walk), x_hat_[t]);
    } else {
      normalize<Kind>(args_, walk.count, row_, /*rows_apart=*/false, x_hat_[t]);
    }
    UNROLL for (int i = 0; i < kStrips; ++i) {
      UNROLL for (int k = 0; k < kPair; ++k) g_[t].values[i][k] = multiply(g_[t].values[i][k], weight.values[i][k]);
    }
  }

  DEVICE_BODY void add_up(int t, Lanes<Real>& plain, Lanes<Real>& with_x_hat) {
    plain = {};
    with_x_hat = {};
    each_segment<Group>(start_, args_.size, t, [&](const Walk& walk) {
      load_segment(walk, t);
      each_element(walk, [&](int i, int k) {
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
        if (walk.valid(i) == 0) break;
        UNROLL for (int k = 0; k < kPair; ++k) {
          g_[t].values[i][k] =
              grad_input<Kind>(g_[t].values[i][k], x_hat_[t].values[i][k], means.plain, means.with_x_hat, inv_std);
        }
      }
      store(args_.grad_input, walk, g_[t]);
    });
  }

  Group& group_;
  const BackwardArgs<Real>& args_;
  int64_t row_, start_;
  typename Group::template PerThread<Strips<Real>> g_, x_hat_;
};

}  // namespace apex::kernels::normalization::cuda
