// SyncBatchNorm compared with one process that normalizes the combined batch in float64 (SBN-01..06, BUG-26..29).
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <apex_cpp/parallel/processes/collectives.h>
#include "tests/distributed/ranks.h"
#include "tests/errors.h"

namespace apex::parallel {
namespace {

using apex::test::expect_error;
using apex::testing::rank;
using apex::testing::world_size;

// A rank's batch is a function of its number, so every rank can compute all batches.
struct Batches {
  std::vector<int64_t> shape;  // without N
  std::vector<int64_t> sizes;  // N of each rank
  torch::Dtype dtype;
  std::vector<torch::Tensor> inputs, grads;

  Batches(std::vector<int64_t> shape_of_one, std::vector<int64_t> sizes_of_ranks, torch::Dtype type)
      : shape(std::move(shape_of_one)), sizes(std::move(sizes_of_ranks)), dtype(type) {
    for (size_t each = 0; each < sizes.size(); ++each) {
      torch::manual_seed(100 + static_cast<int64_t>(each));
      inputs.push_back(random(each).mul(2).add(0.5).to(dtype));
      grads.push_back(random(each).to(dtype));
    }
  }
  torch::Tensor joined(const std::vector<torch::Tensor>& parts) const { return torch::cat(parts).detach().to(torch::kDouble); }
  torch::Tensor rows_of_this_rank(const torch::Tensor& whole) const {
    int64_t start = 0;
    for (int before = 0; before < rank(); ++before) start += sizes[before];
    return whole.narrow(0, start, sizes[rank()]);
  }

 private:
  torch::Tensor random(size_t each) const {
    auto all = shape;
    all.insert(all.begin(), sizes[each]);
    return torch::randn(all, torch::kDouble);
  }
};

std::vector<int64_t> unequal_sizes() {
  std::vector<int64_t> sizes;
  for (int each = 0; each < world_size(); ++each) sizes.push_back(each + 2);
  return sizes;
}

std::vector<int64_t> sizes_with_empty_first_rank() {
  auto sizes = unequal_sizes();
  sizes[0] = 0;
  return sizes;
}

// Sets weights and running statistics to values other than the defaults.
template <class Norm>
void set_state(Norm& norm) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(7);
  const auto random = [&] { return torch::rand({norm.options.num_features()}, torch::kDouble); };
  if (norm.weight.defined()) norm.weight.copy_(random().add(0.5));
  if (norm.bias.defined()) norm.bias.copy_(random().sub(0.5));
  if (norm.running_mean.defined()) norm.running_mean.copy_(random());
  if (norm.running_var.defined()) norm.running_var.copy_(random().add(0.5));
}

struct Outcome {
  torch::Tensor output, grad_input, grad_weight, grad_bias, running_mean, running_var;
};

torch::Tensor grad_or_undefined(const torch::Tensor& tensor) { return tensor.defined() ? tensor.grad() : tensor; }

template <class Norm, class Forward>
Outcome run(Norm& norm, const torch::Tensor& given, const torch::Tensor& grad, Forward forward) {
  const auto input = given.detach().requires_grad_();
  const auto output = forward(input);
  output.backward(grad);
  return {output.detach(),   input.grad(),    grad_or_undefined(norm.weight), grad_or_undefined(norm.bias),
          norm.running_mean, norm.running_var};
}

// The result of one process on the joined batch in float64.
Outcome reference(const SyncBatchNormOptions& options, const Batches& batches) {
  torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(options.num_features())
                                  .eps(options.eps())
                                  .momentum(options.momentum())
                                  .affine(options.affine())
                                  .track_running_stats(options.track_running_stats()));
  norm->to(torch::kDouble);
  set_state(*norm);
  return run(*norm, batches.joined(batches.inputs), batches.joined(batches.grads), [&](const torch::Tensor& input) {
    return norm->forward(input.reshape({input.size(0), input.size(1), -1})).reshape(input.sizes());
  });
}

// Expects differences of at most `bound` times the largest value, or times 1.
void expect_close(const torch::Tensor& actual, const torch::Tensor& expected, double bound, const char* what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual.defined() || actual.numel() == 0) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const auto difference = (actual.to(torch::kDouble) - expected).abs().max().item<double>();
  EXPECT_LE(difference, bound * std::max(1.0, expected.abs().max().item<double>())) << what << ", rank " << rank();
}

torch::Tensor summed(torch::Tensor grad) {
  if (!grad.defined()) return grad;
  grad = grad.to(torch::kDouble);
  all_reduce(default_process_group(), grad, "summing a gradient");
  return grad;
}

void expect_as_joined(const Outcome& local, const Outcome& joined, const Batches& batches, double bound) {
  expect_close(local.output, batches.rows_of_this_rank(joined.output), bound, "output");
  expect_close(local.grad_input, batches.rows_of_this_rank(joined.grad_input), bound, "gradient of the input");
  expect_close(summed(local.grad_weight), joined.grad_weight, bound, "gradient of the weight");
  expect_close(summed(local.grad_bias), joined.grad_bias, bound, "gradient of the bias");
  expect_close(local.running_mean, joined.running_mean, bound, "running mean");
  expect_close(local.running_var, joined.running_var, bound, "running variance");
}

SyncBatchNorm made(const SyncBatchNormOptions& options, torch::Dtype dtype) {
  SyncBatchNorm norm(options);
  norm->to(dtype);
  set_state(*norm);
  return norm;
}

// Sums are float64. float32: 16 roundings of 2^-24; an output has 6, of the mean, the deviation, the weight times the
// deviation, the difference, the product and the sum; the gradient of an input has two such terms more, and a division.
// float64: an addition rounds by 2^-53, and no sum here has more than 350 terms, below 16 each.
double bound_for(torch::Dtype dtype) { return dtype == torch::kDouble ? 1e-12 : 1e-6; }

void check(const SyncBatchNormOptions& options, const Batches& batches) {
  auto norm = made(options, batches.dtype);
  const auto local = run(*norm, batches.inputs[rank()], batches.grads[rank()], [&](const auto& x) { return norm->forward(x); });
  expect_as_joined(local, reference(options, batches), batches, bound_for(batches.dtype));
}

class SyncBatchNormOf : public ::testing::TestWithParam<std::tuple<std::vector<int64_t>, torch::Dtype>> {
 protected:
  std::vector<int64_t> shape() const { return std::get<0>(GetParam()); }
  torch::Dtype dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(SyncBatchNormOf, UnequalBatchesEqualsTheCombinedBatch) {
  check(SyncBatchNormOptions(shape()[0]), Batches(shape(), unequal_sizes(), dtype()));
}

TEST_P(SyncBatchNormOf, BatchesWithAnEmptyOneEqualsTheOthersCombined) {
  check(SyncBatchNormOptions(shape()[0]), Batches(shape(), sizes_with_empty_first_rank(), dtype()));
}

TEST_P(SyncBatchNormOf, BatchesWithoutWeightOrRunningStatistics) {
  const Batches batches(shape(), unequal_sizes(), dtype());
  check(SyncBatchNormOptions(shape()[0]).affine(false), batches);
  check(SyncBatchNormOptions(shape()[0]).track_running_stats(false), batches);
  check(SyncBatchNormOptions(shape()[0]).affine(false).track_running_stats(false), batches);
}

TEST_P(SyncBatchNormOf, BatchesWithOtherStrides) {
  Batches batches(shape(), unequal_sizes(), dtype());
  for (auto* tensors : {&batches.inputs, &batches.grads})
    for (auto& tensor : *tensors) tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1);  // permutes the strides
  check(SyncBatchNormOptions(shape()[0]), batches);
}

TEST_P(SyncBatchNormOf, BatchesWithChannelsAsTheLastDimension) {
  const Batches batches(shape(), unequal_sizes(), dtype());
  const auto options = SyncBatchNormOptions(shape()[0]).channel_last(true);
  auto norm = made(options, dtype());
  const auto last = [](const torch::Tensor& x) { return x.movedim(1, -1).contiguous(); };
  auto local =
      run(*norm, last(batches.inputs[rank()]), last(batches.grads[rank()]), [&](const auto& x) { return norm->forward(x); });
  for (auto* tensor : {&local.output, &local.grad_input}) *tensor = tensor->movedim(-1, 1);
  expect_as_joined(local, reference(options, batches), batches, bound_for(dtype()));
}

using Shape = std::vector<int64_t>;
INSTANTIATE_TEST_SUITE_P(Shapes, SyncBatchNormOf,
                         ::testing::Combine(::testing::Values(Shape{5}, Shape{3, 7}, Shape{4, 3, 5}, Shape{2, 3, 2, 4}),
                                            ::testing::Values(torch::kFloat, torch::kDouble)));

TEST(SyncBatchNorm, ChannelsLastWithManyChannelsEqualsTheCombinedBatch) {  // BUG-28
  Batches batches({65, 100, 100}, std::vector<int64_t>(world_size(), 2), torch::kFloat);
  for (auto* tensors : {&batches.inputs, &batches.grads})
    for (auto& tensor : *tensors) tensor = tensor.contiguous(torch::MemoryFormat::ChannelsLast);
  check(SyncBatchNormOptions(65), batches);
  const auto output = SyncBatchNorm(65)->forward(batches.inputs[rank()]);
  EXPECT_TRUE(output.is_contiguous(torch::MemoryFormat::ChannelsLast));
}

// Rank 0 sums its rows in two parts of 130 rows and one of a single row.
TEST(SyncBatchNorm, PartsOfABatchHaveTheWeightsOfTheirRows) {
  std::vector<int64_t> sizes(world_size(), 1);
  sizes[0] = 261;
  check(SyncBatchNormOptions(5), Batches({5}, sizes, torch::kDouble));
}

TEST(SyncBatchNorm, AcceptsOneValuePerChannelOnEachRank) {  // BUG-26
  check(SyncBatchNormOptions(3), Batches({3}, std::vector<int64_t>(world_size(), 1), torch::kDouble));
}

TEST(SyncBatchNorm, In16BitsRoundsOnlyTheOutput) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    for (const auto parameters : {torch::kFloat, dtype}) {
      const Batches batches({6, 5, 5}, unequal_sizes(), dtype);
      auto norm = made(SyncBatchNormOptions(6), parameters);
      const auto local =
          run(*norm, batches.inputs[rank()], batches.grads[rank()], [&](const auto& x) { return norm->forward(x); });
      EXPECT_EQ(local.output.scalar_type(), dtype);
      EXPECT_EQ(local.grad_weight.scalar_type(), parameters);
      // Roundings: the output, the two terms of the input's gradient and their sum, and 16-bit parameters before use. In total
      // at most three halves of the last place.
      const double last_place = dtype == torch::kHalf ? 0x1p-10 : 0x1p-7;
      expect_as_joined(local, reference(SyncBatchNormOptions(6), batches), batches, 3 * last_place);
    }
  }
}

TEST(SyncBatchNorm, WithoutMomentumAveragesOverAllBatches) {
  auto norm = made(SyncBatchNormOptions(3).momentum(std::nullopt), torch::kDouble);
  torch::nn::BatchNorm1d one(torch::nn::BatchNorm1dOptions(3).momentum(std::nullopt));
  one->to(torch::kDouble);
  set_state(*one);
  for (const int64_t features : {3, 3, 3}) {
    const Batches batches({features, 4}, unequal_sizes(), torch::kDouble);
    norm->forward(batches.inputs[rank()] * static_cast<double>(one->num_batches_tracked.item<int64_t>() + 1));
    one->forward(batches.joined(batches.inputs) * static_cast<double>(one->num_batches_tracked.item<int64_t>() + 1));
  }
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 3);
  expect_close(norm->running_mean, one->running_mean, 1e-12, "running mean");
  expect_close(norm->running_var, one->running_var, 1e-12, "running variance");
}

TEST(SyncBatchNorm, KeepsHalfRunningStatistics) {  // SBN-03
  const Batches batches({3, 4}, unequal_sizes(), torch::kHalf);
  auto norm = made(SyncBatchNormOptions(3), torch::kHalf);
  norm->forward(batches.inputs[rank()]);
  const auto joined = reference(SyncBatchNormOptions(3), batches);
  EXPECT_EQ(norm->running_var.scalar_type(), torch::kHalf);
  expect_close(norm->running_var, joined.running_var, 0x1p-10, "running variance");  // rounded before and after
}

TEST(SyncBatchNorm, InEvaluationIsPlainBatchNormInEveryForm) {  // SBN-02, SBN-06, BUG-27
  torch::manual_seed(rank());
  for (const bool channel_last : {false, true}) {
    for (const bool relu : {false, true}) {
      auto norm = made(SyncBatchNormOptions(4).channel_last(channel_last).fuse_relu(relu), torch::kDouble);
      norm->eval();
      const auto input = torch::randn({3, 4, 5, 4}, torch::kDouble), z = torch::randn({3, 4, 5, 4}, torch::kDouble);
      const auto second = channel_last ? input.movedim(-1, 1) : input;
      auto expected =
          torch::batch_norm(second, norm->weight, norm->bias, norm->running_mean, norm->running_var, false, 0, 1e-5, false);
      expected = (channel_last ? expected.movedim(1, -1) : expected) + z;
      // Values below 16 in float64: a handful of roundings of 2^-53 of them.
      EXPECT_TRUE(norm->forward(input, z).allclose(relu ? expected.relu() : expected, 0, 1e-14));
      EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
    }
  }
}

TEST(SyncBatchNorm, InEvaluationWithoutRunningStatisticsUsesTheCombinedBatch) {  // BUG-27
  const Batches batches({3, 4}, unequal_sizes(), torch::kDouble);
  const auto options = SyncBatchNormOptions(3).track_running_stats(false);
  auto norm = made(options, torch::kDouble);
  norm->eval();
  const auto output = norm->forward(batches.inputs[rank()]);
  expect_close(output.detach(), batches.rows_of_this_rank(reference(options, batches).output), 1e-12, "output");
}

TEST(SyncBatchNorm, AddsZAndAppliesReluInEveryLayout) {  // SBN-06
  for (const bool channel_last : {false, true}) {
    const Batches batches({4, 3, 5}, unequal_sizes(), torch::kDouble);
    const auto last = [&](const torch::Tensor& x) { return (channel_last ? x.movedim(1, -1).contiguous() : x).detach(); };
    const auto second = [&](const torch::Tensor& x) { return channel_last ? x.movedim(-1, 1) : x; };
    auto norm = made(SyncBatchNormOptions(4).channel_last(channel_last).fuse_relu(true), torch::kDouble);
    const auto input = last(batches.inputs[rank()]).requires_grad_(), z = last(batches.grads[rank()]).requires_grad_();
    const auto output = norm->forward(input, z);
    output.backward(last(batches.inputs[rank()]));
    // The same computation with separate layers, on the joined batch.
    torch::nn::BatchNorm2d one(4);
    one->to(torch::kDouble);
    set_state(*one);
    const auto all = batches.joined(batches.inputs).requires_grad_(), all_z = batches.joined(batches.grads).requires_grad_();
    const auto expected = (one->forward(all) + all_z).relu();
    expected.backward(batches.joined(batches.inputs));
    expect_close(second(output.detach()), batches.rows_of_this_rank(expected.detach()), 1e-12, "output");
    expect_close(second(input.grad()), batches.rows_of_this_rank(all.grad()), 1e-12, "gradient of the input");
    expect_close(second(z.grad()), batches.rows_of_this_rank(all_z.grad()), 1e-12, "gradient of z");
    expect_close(summed(norm->weight.grad()), one->weight.grad(), 1e-12, "gradient of the weight");
  }
}

TEST(SyncBatchNorm, BackwardCommunicatesNothingIfTheInputNeedsNoGradient) {
  const Batches batches({3, 4}, unequal_sizes(), torch::kDouble);
  auto norm = made(SyncBatchNormOptions(3), torch::kDouble);
  const auto output = norm->forward(batches.inputs[rank()]);
  if (rank() == 0) output.backward(batches.grads[0]);  // the other ranks do not take part
  const auto joined = reference(SyncBatchNormOptions(3), batches);
  if (rank() != 0) norm->weight.mutable_grad() = torch::zeros_like(norm->weight);
  auto rest = batches.joined(batches.grads);
  rest.narrow(0, batches.sizes[0], rest.size(0) - batches.sizes[0]).zero_();
  const auto x_hat = (joined.output - norm->bias.view({1, 3, 1})) / norm->weight.view({1, 3, 1});
  expect_close(summed(norm->weight.grad()), (rest * x_hat).sum(torch::IntArrayRef({0, 2})).detach(), 1e-12,
               "gradient of the weight");
}

TEST(SyncBatchNorm, RejectsOneValuePerChannelInTotalAndChangesNothing) {  // SBN-04
  auto norm = made(SyncBatchNormOptions(3), torch::kDouble);
  const auto before = norm->running_mean.clone();
  EXPECT_THROW(norm->forward(torch::ones({rank() == 0 ? 1 : 0, 3}, torch::kDouble)), c10::ValueError);
  EXPECT_TRUE(norm->running_mean.equal(before));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
}

TEST(SyncBatchNorm, RejectsMismatchedShapes) {
  SyncBatchNorm norm(3);
  EXPECT_THROW(norm->forward(torch::ones({3})), c10::Error);
  EXPECT_THROW(norm->forward(torch::ones({3, 4})), c10::Error);
  EXPECT_THROW(norm->forward(torch::ones({2, 3, 2, 2, 2, 2})), c10::Error);
  EXPECT_THROW(norm->forward(torch::ones({2, 3}), torch::ones({3})), c10::Error);
}

// Without weights and running statistics the normalization itself would accept any number.
TEST(SyncBatchNorm, RejectsOtherNumbersOfChannels) {
  const auto options = SyncBatchNormOptions(3).affine(false).track_running_stats(false);
  SyncBatchNorm second(options), last(SyncBatchNormOptions(options).channel_last(true));
  expect_error(
      [&] {
        second->forward(torch::ones({2, 4, 3}));
      },
      {"the input has shape [2, 4, 3], with 4 channels in its second dimension, and num_features is 3"});
  expect_error(
      [&] {
        last->forward(torch::ones({2, 3, 4}));
      },
      {"the input has shape [2, 3, 4], with 4 channels in its last dimension, and num_features is 3"});
}

TEST(SyncBatchNorm, RejectsDoubleBackward) {
  auto norm = made(SyncBatchNormOptions(3), torch::kDouble);
  const auto input = torch::randn({4, 3}, torch::kDouble).requires_grad_();
  const auto grad = torch::autograd::grad({norm->forward(input).pow(2).sum()}, {input}, {}, true, /*create_graph=*/true);
  EXPECT_THROW(grad[0].sum().backward(), c10::NotImplementedError);
}

TEST(SyncBatchNorm, CloneKeepsItsOptionsAndPositionInASequential) {
  torch::nn::Sequential net(torch::nn::Conv2d(2, 3, 1), SyncBatchNorm(SyncBatchNormOptions(3).fuse_relu(true)));
  const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(net->ptr<SyncBatchNormImpl>(1)->clone());
  ASSERT_TRUE(copy);
  EXPECT_TRUE(copy->options.fuse_relu());
  const auto input = torch::randn({2, 2, 3, 3});
  EXPECT_GE(net->forward(input).min().item<float>(), 0);
  EXPECT_TRUE(net->named_buffers().contains("1.num_batches_tracked"));
}

}  // namespace
}  // namespace apex::parallel
