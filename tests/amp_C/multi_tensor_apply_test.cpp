// The user's functors on CPU tensors, compiled without nvcc.
#include <apex_cpp/multi_tensor_apply.h>

#include <numeric>

#include "support.h"

namespace {

using namespace amp_C_test;
using apex::amp_C::Chunk;

// Adds 1 to every element of the first list, and the tensor's index to every element of the second.
struct Visit {
  C10_HOST_DEVICE void operator()(int64_t chunk_size, volatile int* noop_flag, TensorListMetadata<2>& tl, int amount) const {
    if (*noop_flag) return;
    const Chunk chunk(tl, chunk_size);
    int* visits = chunk.data<int>(0);
    int64_t* tensors = chunk.data<int64_t>(1);
    for (int64_t i : chunk.elements()) {
      visits[i] += amount;
      tensors[i] = chunk.tensor();
    }
  }
};

void expect_visited_once(const std::vector<int64_t>& numels, int64_t chunk_size) {
  SCOPED_TRACE("chunk size " + std::to_string(chunk_size));
  Tensors visits, tensors;
  for (const int64_t numel : numels) {
    visits.push_back(at::zeros({numel}, at::kInt));
    tensors.push_back(at::full({numel}, -1, at::kLong));
  }
  multi_tensor_apply<2>(512, chunk_size, flag(), {visits, tensors}, Visit(), 1);
  for (size_t i = 0; i < numels.size(); ++i) {
    EXPECT_TRUE(visits[i].eq(1).all().item<bool>()) << "tensor " << i;
    EXPECT_TRUE(tensors[i].eq(static_cast<int64_t>(i)).all().item<bool>()) << "tensor " << i;
  }
}

// MTA-06: also at both ends of the list, and with as many tensors as a launch holds.
TEST(MultiTensorApply, VisitsEachElementOnceWithEmptyTensorsAnywhere) {
  for (const int64_t chunk_size : {1, 5, 64, 65536}) {
    expect_visited_once({0, 1, 4, 5, 6, 0, 0, 333, 64, 0}, chunk_size);
    expect_visited_once({0}, chunk_size);
  }
  const int full = apex::amp_C::max_tensors(2);
  for (const int count : {full - 1, full, full + 1, 3 * full}) {
    std::vector<int64_t> numels(static_cast<size_t>(count), 3);
    expect_visited_once(numels, 2);
    numels[static_cast<size_t>(full) - 2] = 0;
    numels.back() = 0;
    expect_visited_once(numels, 2);
  }
}

// CUDA refuses a launch without blocks. The launches' elements are those of the tensors, also where a tensor's last chunk is
// smaller than the others.
TEST(MultiTensorApply, HasBlocksInEveryLaunch) {
  for (const auto& numels : std::vector<std::vector<int64_t>>{{}, {0}, {320}, {320, 0}, {0, 640, 0}, {1, 319, 320}}) {
    Tensors tensors;
    for (const int64_t numel : numels) tensors.push_back(at::zeros({numel}));
    for (const int64_t chunk_size : {1, 7}) {
      int64_t launched = 0;
      apex::amp_C::detail::for_each_launch<1>("test", {tensors}, chunk_size, [&](const auto&, int blocks, int64_t elements) {
        EXPECT_GT(blocks, 0);
        launched += elements;
      });
      EXPECT_EQ(launched, std::accumulate(numels.begin(), numels.end(), int64_t{0})) << chunk_size;
    }
  }
}

// MTA-05: a launch reaches its block limit inside a tensor, at its end, and one block before.
TEST(MultiTensorApply, VisitsEachElementOnceOverManyLaunches) {
  for (const int64_t blocks : {319, 320, 321, 640, 1000}) expect_visited_once({blocks, 1, blocks}, 1);
  expect_visited_once(std::vector<int64_t>(2000, 17), 16);
}

TEST(MultiTensorApply, ResultsDoNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 4}) {
    at::set_num_threads(threads);
    expect_visited_once({100000, 1, 70000}, 1000);
  }
  at::set_num_threads(before);
}

// MTA-07: writes the last byte of a tensor of more than 2^32 bytes; its other pages are never touched.
struct MarkLast {
  C10_HOST_DEVICE void operator()(int64_t chunk_size, volatile int*, TensorListMetadata<1>& tl, int64_t numel) const {
    const Chunk chunk(tl, chunk_size);
    if (chunk.offset() + chunk.size() == numel) chunk.data<unsigned char>(0)[chunk.size() - 1] = 7;
  }
};

TEST(MultiTensorApply, OffsetsHave64Bits) {
  const int64_t numel = (int64_t{1} << 32) + 65537;
  const at::Tensor large = at::empty({numel}, at::kByte);
  multi_tensor_apply<1>(512, 65536, flag(), {{large}}, MarkLast(), numel);
  EXPECT_EQ(large[numel - 1].item<int>(), 7);
}

TEST(MultiTensorApply, TheFunctorReadsAndSetsTheFlag) {
  const Tensors visits = {at::zeros({100}, at::kInt)}, tensors = {at::zeros({100}, at::kLong)};
  multi_tensor_apply<2>(512, 10, flag(1), {visits, tensors}, Visit(), 1);
  EXPECT_EQ(visits[0].sum().item<int>(), 0);

  const auto find = [](int64_t chunk_size, volatile int* noop_flag, TensorListMetadata<1>& tl) {
    const Chunk chunk(tl, chunk_size);
    for (int64_t i : chunk.elements()) {
      if (std::isnan(chunk.data<float>(0)[i])) *noop_flag = 1;
    }
  };
  const Tensors values = {at::zeros({100}), at::zeros({100})};
  const at::Tensor noop = flag();
  multi_tensor_apply<1>(512, 7, noop, {values}, find);
  EXPECT_EQ(noop.item<int>(), 0);
  values[1][99] = NAN;
  multi_tensor_apply<1>(512, 7, noop, {values}, find);
  EXPECT_EQ(noop.item<int>(), 1);
}

// Reads the fields that an Apex functor reads, with Apex's arithmetic.
struct ByHand {
  C10_HOST_DEVICE void operator()(int chunk_size, volatile int*, TensorListMetadata<2>& tl) const {
    const int tensor_loc = tl.block_to_tensor[tl.block()];
    const int64_t tensor_num = tl.start_tensor_this_launch + tensor_loc;
    const int chunk_idx = tl.block_to_chunk[tl.block()];
    int64_t n = tl.sizes[tensor_loc] - chunk_idx * chunk_size;
    const float* in = static_cast<float*>(tl.addresses[0][tensor_loc]) + chunk_idx * chunk_size;
    float* out = static_cast<float*>(tl.addresses[1][tensor_loc]) + chunk_idx * chunk_size;
    for (int64_t i = 0; i < n && i < chunk_size; ++i) out[i] = in[i] + static_cast<float>(tensor_num);
  }
};

TEST(MultiTensorApply, MetadataHasApexFields) {
  Tensors in, out;
  for (int i = 0; i < 200; ++i) {
    in.push_back(at::rand({i % 7 * 10}));
    out.push_back(at::empty_like(in.back()));
  }
  multi_tensor_apply<2>(512, 16, flag(), {in, out}, ByHand());
  for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(at::equal(out[i], in[i] + static_cast<double>(i))) << i;
}

TEST(MultiTensorApply, AnExceptionOfTheFunctorReachesTheCaller) {
  const auto fail = [](int64_t, volatile int*, TensorListMetadata<1>&) { throw std::runtime_error("no"); };
  EXPECT_THROW(multi_tensor_apply<1>(512, 16, flag(), {{at::ones({100000})}}, fail), std::runtime_error);
}

TEST(MultiTensorApply, MismatchedTensorsAreErrorsThatNameThem) {
  const Tensors ints = {at::zeros({4}, at::kInt)};
  const auto visit = [&](const TensorLists& lists, int64_t chunk_size = 16) {
    multi_tensor_apply<2>(512, chunk_size, flag(), lists, Visit(), 1);
  };
  expect_error([&] { visit({ints}); }, {"multi_tensor_apply", "1 tensor lists", "expected 2"});
  expect_error([&] { visit({ints, {at::zeros({5}, at::kLong)}}); }, {"tensor_lists[1][0] has 5 elements"});
  expect_error<c10::ValueError>([&] { visit({ints, {at::zeros({4}, at::kLong)}}, 0); }, {"chunk_size is 0"});
  expect_error<c10::ValueError>(
      [] { multi_tensor_apply<1>(512, 1, flag(), {{at::empty({int64_t{1} << 31}, at::kByte)}}, MarkLast(), int64_t{0}); },
      {"chunk_size 1 is too small"});
  const at::Tensor memory = at::zeros({8}, at::kByte);
  expect_error([&] { multi_tensor_apply<1>(512, 16, flag(), {{memory.slice(0, 0, 8, 2)}}, MarkLast(), int64_t{4}); },
               {"tensor_lists[0][0] is sparse, or has gaps or repeats in its memory"});
  EXPECT_EQ(memory.count_nonzero().item<int64_t>(), 0);
}

// Without nvcc there is no code for other devices: meta tensors stand for them.
TEST(MultiTensorApply, CudaTensorsWithoutNvccAreAnError) {
  const at::TensorOptions meta(at::kMeta);
  const at::Tensor noop = at::zeros({1}, meta.dtype(at::kInt));
  expect_error<c10::NotImplementedError>(
      [&] { multi_tensor_apply<1>(512, 16, noop, {{at::zeros({4}, meta)}}, MarkLast(), int64_t{4}); }, {"meta", "nvcc"});
}

}  // namespace
