// The CUDA kernels' bodies, run on the host with a loop as thread group: the bits of the CPU driver, every element visited
// once, nothing else written.
#include "kernels/normalization/cuda/normalization_cuda.h"
#include "tests/normalization/support.h"

namespace normalization_test {
namespace {

namespace kernels = apex::kernels;
namespace bodies = apex::kernels::normalization::cuda;
namespace order = apex::kernels::normalization;

// A group whose threads run one after another; sums are taken in the order of a device's shuffles.
template <int kCount>
struct HostGroup {
  static constexpr int kThreads = kCount;

  template <class T>
  using PerThread = std::array<T, kCount>;

  template <class Work>
  void each_thread(const Work& work) {
    for (int t = 0; t < kThreads; ++t) work(t);
  }

  template <class Real, size_t kSums>
  bodies::Totals<Real, kSums> sums(PerThread<bodies::Lanes<Real>> (&lanes)[kSums]) {
    bodies::Totals<Real, kSums> totals;
    for (size_t s = 0; s < kSums; ++s) totals.of[s] = sum(lanes[s]);
    return totals;
  }

 private:
  template <class Real>
  Real sum(PerThread<bodies::Lanes<Real>>& lanes) {
    Real slots[order::kSlots] = {};
    for (int slot = 0; slot < kThreads / order::kSlotThreads; ++slot) {
      bodies::Lanes<Real>* const of_slot = &lanes[static_cast<size_t>(slot * order::kSlotThreads)];
      for (int apart = order::kSlotThreads / 2; apart > 0; apart /= 2) {
        for (int t = 0; t < apart; ++t) {
          for (int k = 0; k < order::kPair; ++k) of_slot[t].values[k] += of_slot[t + apart].values[k];
        }
      }
      slots[slot] = order::fold<order::kPair>(of_slot[0].values);
    }
    return order::fold<order::kSlots>(slots);
  }
};

// As in a launch: one slot, four or all per row, always all for float64 rows.
template <template <class, class, class> class Row, class Kind, class Real, template <class> class Args>
void run_rows(const Args<Real>& args) {
  const auto each = [&](auto group) {
    bodies::with_access<Real>(args.mix, [&](auto access) {
      for (int64_t row = 0; row < args.rows; ++row) Row<Kind, decltype(access), decltype(group)>(group, args, row).run();
    });
  };
  if (std::is_same_v<Real, float> && args.size <= order::kSegment) {
    each(HostGroup<order::kSlotThreads>());
  } else if (std::is_same_v<Real, float> && args.size <= 4 * order::kSegment) {
    each(HostGroup<4 * order::kSlotThreads>());
  } else {
    each(HostGroup<order::kSlots * order::kSlotThreads>());
  }
}

// Forward and backward with tensors inside pattern-filled memory, `offset` elements after an aligned address.
class BodyRun {
 public:
  BodyRun(const Case& c, int64_t offset) : offset_(offset) {
    const auto kind = c.mix.kind == Kind::layer ? kernels::NormKind::layer : kernels::NormKind::rms;
    const kernels::NormShape shape{c.input.size(0), c.input.size(1)};
    const kernels::NormAffine affine{placed(c.weight), placed(c.bias)};
    const bool is_double = c.mix.input == at::kDouble;
    const auto statistics = at::TensorOptions().dtype(is_double ? at::kDouble : at::kFloat);
    kernels::NormForward out{guarded(c.input, c.mix.weight),
                             kind == kernels::NormKind::layer ? at::empty({shape.rows}, statistics) : Tensor(),
                             at::empty({shape.rows}, statistics)};
    const Tensor input = placed(c.input);
    const order::ForwardCall there{kind, shape, input, affine, c.eps, out};
    is_double ? forward<double>(there) : forward<float>(there);
    const kernels::NormSaved saved{c.memory_efficient ? out.output : input, c.memory_efficient ? Tensor() : out.mean,
                                   out.inv_std, c.memory_efficient, c.eps};
    const kernels::NormGrads grads{guarded(c.input, c.mix.input),
                                   c.weight.defined() ? guarded(c.weight, c.mix.weight) : Tensor(),
                                   c.bias.defined() ? guarded(c.bias, c.mix.weight) : Tensor()};
    const order::BackwardCall back{kind, shape, placed(c.grad_output), saved, affine, grads};
    is_double ? backward<double>(back) : backward<float>(back);
    result = {out.output, grads.input, grads.weight, grads.bias};
  }

  Result result;

  bool margins_are_untouched() const {
    for (const Tensor& memory : guarded_) {
      const Tensor before = memory.narrow(0, 0, kMargin), after = memory.narrow(0, memory.numel() - kMargin, kMargin);
      if (!before.eq(7).all().item<bool>() || !after.eq(7).all().item<bool>()) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kMargin = 32;

  Tensor placed(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return at::empty({tensor.numel() + offset_}, tensor.options())
        .narrow(0, offset_, tensor.numel())
        .view_as(tensor)
        .copy_(tensor);
  }
  Tensor guarded(const Tensor& like, at::ScalarType dtype) {
    const Tensor memory = at::full({like.numel() + 2 * kMargin + offset_}, 7, dtype);
    guarded_.push_back(memory.narrow(0, offset_, like.numel() + 2 * kMargin));
    return guarded_.back().narrow(0, kMargin, like.numel()).view_as(like);
  }

  template <class Real>
  void forward(const order::ForwardCall& call) {
    const auto args = bodies::forward_args<Real>(call);
    if (call.kind == kernels::NormKind::layer) {
      run_rows<bodies::ForwardRow, order::Layer>(args);
    } else {
      run_rows<bodies::ForwardRow, order::Rms>(args);
    }
  }

  template <class Real>
  void backward(const order::BackwardCall& call) {
    if (call.kind == kernels::NormKind::layer) {
      backward_as<order::Layer, Real>(call);
    } else {
      backward_as<order::Rms, Real>(call);
    }
  }

  template <class Kind, class Real>
  void backward_as(const order::BackwardCall& call) {
    const auto args = bodies::backward_args<Real>(call);
    run_rows<bodies::BackwardRow, Kind>(args);
    if (!call.out.weight.defined()) return;
    const int64_t block_rows = order::rows_per_block(args.rows, args.size), blocks = (args.rows + block_rows - 1) / block_rows;
    std::vector<Real> weight(static_cast<size_t>(blocks * args.size)), bias(weight.size());
    const bodies::BlockSums<Real> sums{block_rows, blocks, weight.data(), bias.data()};
    bodies::with_access<Real>(args.mix, [&](auto access) {
      for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t pair = 0; pair * order::kPair < args.size; ++pair) {
          bodies::add_up_rows<Kind, decltype(access)>(args, sums, block, pair);
        }
      }
    });
    add_up_blocks(weight.data(), blocks, args.size, bodies::target_of(call.out.weight, args.size));
    if (call.out.bias.defined()) add_up_blocks(bias.data(), blocks, args.size, bodies::target_of(call.out.bias, args.size));
  }

  template <class Real>
  static void add_up_blocks(const Real* sums, int64_t blocks, int64_t size, const bodies::Target& total) {
    for (int64_t column = 0; column < size; ++column) {
      Real shares[bodies::kTotalShares];
      for (int i = 0; i < bodies::kTotalShares; ++i) shares[i] = bodies::add_up_share(sums, blocks, size, column, i);
      bodies::store_total(shares, column, total);
    }
  }

  int64_t offset_;
  std::vector<Tensor> guarded_;
};

class NormBodies : public ::testing::TestWithParam<Mix> {};

TEST_P(NormBodies, GiveTheBitsOfTheCpuDriverAndWriteNothingElse) {
  for (const int64_t size : sizes()) {
    for (const int64_t rows : {1, 9}) {
      Case c = random_case(GetParam(), rows, size);
      for (const int64_t offset : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << size << " at " << offset);
        c.memory_efficient = offset == 1;
        const BodyRun body(c, offset);
        expect_same_bits(body.result, run(c));
        EXPECT_TRUE(body.margins_are_untouched());
      }
    }
  }
}

TEST_P(NormBodies, SumManyBlocksOfRowsInTheSameOrder) {
  const Case c = random_case(GetParam(), 6000, 33);
  expect_same_bits(BodyRun(c, 0).result, run(c));
}

INSTANTIATE_TEST_SUITE_P(All, NormBodies, ::testing::ValuesIn(all_mixes()), param_name);

// The elements of a row that each thread of a group has, from the index function that all loads and stores use.
template <class Access, int kThreads>
void expect_each_column_once(int64_t size) {
  std::vector<int> visits(static_cast<size_t>(size));
  constexpr int64_t kRowStart = 1000;
  for (int t = 0; t < kThreads; ++t) {
    bodies::each_segment<HostGroup<kThreads>>(kRowStart, size, t, [&](const bodies::Walk& walk) {
      for (int i = 0; i < order::kStrips; ++i) {
        for (int k = 0; k < Access::valid(walk, i); ++k) ++visits.at(static_cast<size_t>(walk.at(i) + k - kRowStart));
      }
    });
  }
  EXPECT_EQ(visits, std::vector<int>(static_cast<size_t>(size), 1)) << size;
}

TEST(NormWalk, VisitsEachColumnOnce) {
  for (const int64_t size : sizes()) {
    const auto expect_with = [size](auto access) {
      using Access = decltype(access);
      if (size <= order::kSegment) expect_each_column_once<Access, order::kSlotThreads>(size);
      expect_each_column_once<Access, order::kSlots * order::kSlotThreads>(size);
    };
    expect_with(bodies::AnyMix<float>());
    if (size % order::kPair == 0) expect_with(bodies::OneType<float>());
  }
}

}  // namespace
}  // namespace normalization_test
