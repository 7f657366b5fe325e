// convert_syncbn_model and create_syncbn_process_group (SBN-08, SBN-09): converted models synchronize in every form in which a
// program holds batch norms, also after clone, load and a change of thread.
#include <apex_cpp/amp.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>
#include <thread>

#include <apex_cpp/parallel/processes/collectives.h>
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

using apex::testing::rank;
using apex::testing::world_size;

// Batches of small whole numbers, which are exact in every dtype. Rank r has r + 2 samples.
torch::Tensor batch_of(int of_rank) {
  torch::manual_seed(40 + of_rank);
  return torch::randint(-8, 9, {of_rank + 2, 3, 4, 4}).to(torch::kFloat);
}
torch::Tensor joined_batches(int first, int last) {
  std::vector<torch::Tensor> all;
  for (int each = first; each <= last; ++each) all.push_back(batch_of(each));
  return torch::cat(all);
}
torch::Tensor joined_batches() { return joined_batches(0, world_size() - 1); }
torch::Tensor rows_of_this_rank(const torch::Tensor& whole) {
  int64_t start = 0;
  for (int before = 0; before < rank(); ++before) start += before + 2;
  return whole.narrow(0, start, rank() + 2);
}

// Batch norms as members, one of them in a nested module.
struct BlockImpl : torch::nn::Cloneable<BlockImpl> {
  BlockImpl() { reset(); }
  void reset() override {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).bias(false)));
    bn = register_module("bn", torch::nn::BatchNorm2d(4));
  }
  torch::Tensor forward(const torch::Tensor& x) { return bn->forward(conv->forward(x)).relu(); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d bn{nullptr};
};
TORCH_MODULE(Block);

struct MembersImpl : torch::nn::Cloneable<MembersImpl> {
  MembersImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(3).affine(false)));
    block = register_module("block", Block());
    last = register_module("last", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).eps(1e-3).momentum(std::nullopt)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last->forward(block->forward(first->forward(x)).sum({2, 3})); }
  torch::nn::BatchNorm2d first{nullptr};
  Block block{nullptr};
  torch::nn::BatchNorm1d last{nullptr};
};
TORCH_MODULE(Members);

torch::nn::Sequential sequential() {
  return torch::nn::Sequential(torch::nn::BatchNorm2d(3), torch::nn::Conv2d(3, 2, 1), torch::nn::BatchNorm2d(2),
                               torch::nn::ReLU());
}

struct ListsImpl : torch::nn::Module {
  ListsImpl() {
    register_module("list", list);
    register_module("dict", dict);
    list->push_back(torch::nn::BatchNorm2d(3));
    const torch::nn::BatchNorm2d untracked(torch::nn::BatchNorm2dOptions(3).track_running_stats(false));
    dict->update({{"norm", untracked.ptr()}});
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& each : *list) x = each->as<torch::nn::BatchNorm2d>()->forward(x);
    return dict["norm"]->as<torch::nn::BatchNorm2d>()->forward(x);
  }
  torch::nn::ModuleList list;
  torch::nn::ModuleDict dict;
};
TORCH_MODULE(Lists);

double difference(const torch::Tensor& a, const torch::Tensor& b) { return (a - b).abs().max().item<double>(); }

// Sums of whole numbers are exact. Then, for two sides each, a rank's mean and the joined one, below 2, are rounded by 2^-24
// and count a tenth; the product and the new running mean, below 0.2, are rounded by 2^-27.
constexpr double kRunningMean = 2 * (0.2 * 0x1p-24 + 2 * 0x1p-27);
// Variances below 32 have up to five roundings of 2^-19: of deviations, of their squares, of the sum, of the quotient and of
// float32's 0.1, and count a tenth. The product and the new running variance, below 4, are rounded by 2^-23.
constexpr double kRunningVar = 2 * (0.1 * 5 * 0x1p-19 + 2 * 0x1p-23);

torch::Tensor averaged(torch::Tensor tensor) {
  tensor = tensor.detach().clone();
  all_reduce(default_process_group(), tensor, "summing");
  return tensor;
}

using Tensors = std::vector<torch::Tensor>;

// How far `values` are from `exact`, as a share of the largest value of all of them: a gradient may be zero but for roundings.
double relative_difference(const Tensors& values, const Tensors& exact) {
  double largest_difference = 0, largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto wide = exact[i].to(torch::kDouble);
    EXPECT_TRUE(values[i].isfinite().all().item<bool>());
    largest_difference = std::max(largest_difference, difference(values[i].to(torch::kDouble), wide));
    largest = std::max(largest, wide.abs().max().item<double>());
  }
  return largest_difference / largest;
}

// What another order of the same sums may change in float64. In float32 the same program is off from float64 by `of_float32`:
// its roundings are 2^29 times as large, but LibTorch's batch norm adds float32 in float64, so those of a sum are missing. A
// sum has as many as a channel has values.
double other_order(double of_float32) { return static_cast<double>(joined_batches().numel() / 3) * of_float32 * 0x1p-29; }

struct Pass {
  torch::Tensor output;
  Tensors grads, buffers;
};

// One training pass in `dtype`. Leaves weights and buffers as they are, in float32.
template <class Net>
Pass pass_of(Net& model, const torch::Tensor& batch, torch::Dtype dtype) {
  std::vector<torch::Tensor> before;
  for (const auto& buffer : model->buffers()) before.push_back(buffer.clone());
  model->to(dtype);
  Pass pass{model->forward(batch.to(dtype)), {}, {}};
  pass.output.pow(3).sum().backward();
  for (auto& param : model->parameters()) {
    pass.grads.push_back(param.grad().clone());
    param.mutable_grad().reset();
  }
  for (const auto& buffer : model->buffers()) pass.buffers.push_back(buffer.clone());
  model->to(torch::kFloat);
  for (size_t i = 0; i < before.size(); ++i) model->buffers()[i].copy_(before[i]);
  return pass;
}

// Trains both models for one step in float64: `model` on the joined batch, `converted` on this rank's part.
template <class Net>
void expect_as_joined(Net& model, Net& converted) {
  const auto expected = pass_of(model, joined_batches(), torch::kDouble),
             rough = pass_of(model, joined_batches(), torch::kFloat);
  auto actual = pass_of(converted, batch_of(rank()), torch::kDouble);
  for (auto& grad : actual.grads) grad = averaged(grad);
  const auto expect_close = [](const Tensors& values, const Tensors& exact, const Tensors& float32) {
    EXPECT_LE(relative_difference(values, exact), other_order(relative_difference(float32, exact)));
  };
  expect_close({actual.output}, {rows_of_this_rank(expected.output)}, {rows_of_this_rank(rough.output)});
  if (!actual.grads.empty()) expect_close(actual.grads, expected.grads, rough.grads);
  for (size_t i = 0; i < actual.buffers.size(); ++i) {
    expect_close({actual.buffers[i]}, {expected.buffers[i]}, {rough.buffers[i]});
  }
}

// Copies rank 0's weights to both models on all ranks.
template <class Net>
void copy_state(Net& from, Net& to) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : from->parameters()) broadcast(default_process_group(), parameter, 0, "broadcasting a parameter");
  std::stringstream archive;
  torch::save(from, archive);
  torch::load(to, archive);
}

template <class Net>
void check_converted(Net model, Net other) {
  const auto names = other->named_parameters().keys();
  const auto parameters = other->parameters();
  auto converted = convert_syncbn_model(other);
  static_assert(std::is_same_v<decltype(converted), Net>);
  EXPECT_EQ(converted->named_parameters().keys(), names);
  for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(converted->parameters()[i].is_same(parameters[i]));
  copy_state(model, converted);
  expect_as_joined(model, converted);
}

TEST(ConvertSyncBatchNorm, ConvertsMembers) { check_converted(Members(), Members()); }
TEST(ConvertSyncBatchNorm, ConvertsSequentials) { check_converted(sequential(), sequential()); }
TEST(ConvertSyncBatchNorm, ConvertsListsAndDictionaries) { check_converted(Lists(), Lists()); }

TEST(ConvertSyncBatchNorm, ConvertsSharedPointersAndStructs) {
  auto pointer = convert_syncbn_model(std::make_shared<MembersImpl>());
  auto model = std::make_shared<MembersImpl>();
  copy_state(model, pointer);
  expect_as_joined(model, pointer);
  MembersImpl object;
  EXPECT_EQ(&convert_syncbn_model(object), &object);
  EXPECT_NE(object.first->options.eps(), 1e-5);
}

TEST(ConvertSyncBatchNorm, KeepsHyperparametersAndEps) {
  auto model = sequential(), converted = sequential();
  convert_syncbn_model(converted);
  copy_state(model, converted);
  const auto& options = converted->ptr(0)->as<torch::nn::BatchNorm2d>()->options;
  // The last 16 of the 52 fraction bits change. Between 2^-17 and 2^-16 they are worth less than 2^-17 * 2^-36.
  EXPECT_NEAR(options.eps(), 1e-5, 0x1p-53);
  EXPECT_EQ(options.momentum(), 0.1);
  model->eval();
  converted->eval();
  EXPECT_TRUE(model->forward(joined_batches()).equal(converted->forward(joined_batches())));
}

std::string file_of(const Members& model) {
  std::ostringstream archive;
  torch::save(model, archive);
  return archive.str();
}

// A file holds neither options nor marks: files from before a conversion load after it, and the other way round.
TEST(ConvertSyncBatchNorm, DoesNotChangeFiles) {
  Members model;
  const auto before = file_of(model);
  convert_syncbn_model(model, create_syncbn_process_group(1), /*channel_last=*/true);
  EXPECT_EQ(file_of(model), before);
  std::istringstream archive(before);
  torch::load(model, archive);
  EXPECT_TRUE(sync_batch_norm_options(*model->first)->channel_last());
}

TEST(ConvertSyncBatchNorm, CanBeReadBack) {
  const auto alone = create_syncbn_process_group(1);
  torch::nn::BatchNorm2d norm(torch::nn::BatchNorm2dOptions(3).eps(1e-3).affine(false));
  EXPECT_FALSE(sync_batch_norm_options(*norm));
  EXPECT_FALSE(sync_batch_norm_options(*torch::nn::ReLU()));
  convert_syncbn_model(norm, alone, /*channel_last=*/true);
  for (const auto& module : {norm.ptr(), std::dynamic_pointer_cast<torch::nn::BatchNorm2dImpl>(norm->clone())}) {
    const auto options = sync_batch_norm_options(*module);
    ASSERT_TRUE(options);
    EXPECT_EQ(options->eps(), 1e-3);
    EXPECT_EQ(options->process_group(), alone);
    EXPECT_TRUE(options->channel_last());
    EXPECT_FALSE(options->affine());
  }
  EXPECT_TRUE(sync_batch_norm_options(*SyncBatchNorm(SyncBatchNormOptions(3).channel_last(true)))->channel_last());
}

TEST(ConvertSyncBatchNorm, LastsThroughACloneALoadAndAnotherThread) {
  Members model, converted;
  convert_syncbn_model(converted);
  auto copy = Members(std::dynamic_pointer_cast<MembersImpl>(converted->clone()));
  copy_state(model, copy);
  copy->eval();
  copy->train();
  std::thread([&] { expect_as_joined(model, copy); }).join();
}

TEST(ConvertSyncBatchNorm, TrainsUnderDistributedDataParallelAsOneProcessOnTheJoinedBatch) {
  Members one, model, rough;
  copy_state(one, model);
  copy_state(one, rough);
  one->to(torch::kDouble);
  model->to(torch::kDouble);
  DistributedDataParallel ddp(convert_syncbn_model(model));
  const auto train = [](auto&& forward, const std::vector<torch::Tensor>& parameters, const torch::Tensor& batch,
                        int64_t ranks) {
    torch::optim::SGD sgd(parameters, 0.1);
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      forward(batch).pow(3).sum().div(ranks).backward();
      sgd.step();
    }
  };
  train([&](const auto& x) { return one->forward(x); }, one->parameters(), joined_batches().to(torch::kDouble), world_size());
  train([&](const auto& x) { return rough->forward(x); }, rough->parameters(), joined_batches(), world_size());
  train(ddp, model->parameters(), batch_of(rank()).to(torch::kDouble), 1);
  for (size_t i = 0; i < one->parameters().size(); ++i) {
    const Tensors exact{one->parameters()[i]};
    EXPECT_LE(relative_difference({model->parameters()[i]}, exact),
              other_order(relative_difference({rough->parameters()[i]}, exact)));
  }
}

TEST(ConvertSyncBatchNorm, ConvertingAgainReplacesTheGroup) {
  const auto alone = create_syncbn_process_group(1);
  torch::nn::BatchNorm2d norm(3), plain(3);
  convert_syncbn_model(norm);
  const double eps = norm->options.eps();
  convert_syncbn_model(norm, alone);
  EXPECT_TRUE(norm->forward(batch_of(rank())).equal(plain->forward(batch_of(rank()))));
  EXPECT_TRUE(norm->running_var.equal(plain->running_var));
  convert_syncbn_model(norm);
  EXPECT_EQ(norm->options.eps(), eps);
}

TEST(ConvertSyncBatchNorm, AcceptsShapesWithChannelsLast) {
  torch::nn::BatchNorm2d norm(3), plain(3);
  convert_syncbn_model(norm, {}, /*channel_last=*/true);
  const auto output = norm->forward(batch_of(rank()).movedim(1, -1).contiguous()).movedim(-1, 1);
  // LibTorch adds the squares of a rank's channel, 80 at most, in float32, off by 82 * 2^-24; the root is off by half of
  // that. The mean, the root, its reciprocal, a difference, two products and a sum, on both sides, are rounded once each.
  // Outputs are below 2.
  EXPECT_LE(difference(output, rows_of_this_rank(plain->forward(joined_batches()))), 2 * (41 + 2 * 7) * 0x1p-24);
  EXPECT_LE(difference(norm->running_mean, plain->running_mean), kRunningMean);
}

TEST(ConvertSyncBatchNorm, AcceptsAnEmptyBatchOnOneRank) {
  torch::nn::BatchNorm2d norm(3), plain(3);
  convert_syncbn_model(norm);
  norm->forward(rank() == 0 ? torch::empty({0, 3, 4, 4}) : batch_of(rank()));
  plain->forward(joined_batches(1, world_size() - 1));
  EXPECT_LE(difference(norm->running_var, plain->running_var), kRunningVar);
}

TEST(ConvertSyncBatchNorm, SkipsInstanceNormAndSetsTheGroupOfSyncBatchNorm) {
  const auto alone = create_syncbn_process_group(1);
  torch::nn::Sequential net(torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(3).track_running_stats(true)),
                            SyncBatchNorm(3));
  convert_syncbn_model(net, alone);
  EXPECT_EQ(net->ptr(0)->as<torch::nn::InstanceNorm2d>()->options.eps(), 1e-5);
  EXPECT_EQ(net->ptr(1)->as<SyncBatchNorm>()->options.process_group(), alone);
}

struct OwnNormImpl : torch::nn::Module {
  OwnNormImpl() {
    register_buffer("running_mean", torch::zeros({3}));
    register_buffer("running_var", torch::ones({3}));
  }
};

struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { text += warning.msg(); }
  std::string text;
};

TEST(ConvertSyncBatchNorm, WarnsAboutABatchNormOfAnotherClass) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  convert_syncbn_model(std::make_shared<OwnNormImpl>());
  EXPECT_NE(warnings.text.find("It is left unchanged and does not synchronize"), std::string::npos) << warnings.text;
}

TEST(ConvertSyncBatchNorm, RejectsAnInvalidEpsAndChangesNothing) {
  torch::nn::Sequential net(torch::nn::BatchNorm2d(3), torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(3).eps(-1)));
  EXPECT_THROW(convert_syncbn_model(net), c10::ValueError);
  EXPECT_EQ(net->ptr(0)->as<torch::nn::BatchNorm2d>()->options.eps(), 1e-5);
}

TEST(SyncBatchNormGroups, SynchronizeWithinEachGroup) {
  if (world_size() != 4) GTEST_SKIP() << "needs four ranks";
  const auto group = create_syncbn_process_group(2);
  ASSERT_EQ(group->getSize(), 2);
  EXPECT_EQ(group->getRank(), rank() % 2);
  torch::nn::BatchNorm2d norm(3), plain(3);
  convert_syncbn_model(norm, group);
  const auto first = rank() / 2 * 2;
  norm->forward(batch_of(rank()));
  plain->forward(joined_batches(first, first + 1));
  EXPECT_LE(difference(norm->running_mean, plain->running_mean), kRunningMean);
  EXPECT_LE(difference(norm->running_var, plain->running_var), kRunningVar);
}

TEST(SyncBatchNormGroups, DivideTheRanksEvenly) {  // SBN-09
  EXPECT_FALSE(create_syncbn_process_group(0).defined());
  EXPECT_THROW(create_syncbn_process_group(world_size() + 1), c10::ValueError);
  EXPECT_THROW(create_syncbn_process_group(-1), c10::ValueError);
  if (world_size() != 3) return;
  EXPECT_THROW(create_syncbn_process_group(2), c10::ValueError);
}

// A model with one batch norm: LibTorch's class, which is converted, or SyncBatchNorm.
template <class Norm>
struct AloneImpl : torch::nn::Module {
  AloneImpl() { register_module("norm", norm); }
  torch::Tensor forward(const torch::Tensor& x) { return norm->forward(x); }
  Norm norm{3};
};

class SyncBatchNormAt : public ::testing::TestWithParam<const char*> {
 protected:
  // The running mean is a tenth of the joined batch's mean, in the level's dtype for running statistics.
  void expect_synchronized(const torch::Tensor& running_mean) const {
    const auto expected = joined_batches().mean(torch::IntArrayRef({0, 2, 3})) * 0.1;
    // Float16, with 11 bits, rounds a value below 0.25 by 2^-14 at most.
    const double rounded_once = running_mean.scalar_type() == torch::kFloat ? 0 : 0x1p-14;
    EXPECT_LE(difference(running_mean.to(torch::kFloat), expected), kRunningMean + rounded_once);
  }
  torch::Dtype type_of_norm() const { return std::string(GetParam()) == "O3" ? torch::kHalf : torch::kFloat; }

  template <class Norm>
  void train_once(std::shared_ptr<AloneImpl<Norm>> model, bool convert_last) {
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, sgd, amp::OptLevel(GetParam()), amp::InitializeOptions().verbosity(0));
    if (convert_last) convert_syncbn_model(net);
    auto loss = net->forward(batch_of(rank())).to(torch::kFloat).pow(2).mean();
    {
      auto scaled_loss = amp::scale_loss(loss, opt);
      scaled_loss.backward();
    }
    EXPECT_EQ(net->norm->weight.scalar_type(), type_of_norm());
    expect_synchronized(net->norm->running_mean);
    opt.step();
    amp::reset();
  }
};

TEST_P(SyncBatchNormAt, IsABatchNormForAmp) { train_once(std::make_shared<AloneImpl<SyncBatchNorm>>(), false); }
TEST_P(SyncBatchNormAt, ConvertedBeforeInitialize) {
  train_once(convert_syncbn_model(std::make_shared<AloneImpl<torch::nn::BatchNorm2d>>()), false);
}
TEST_P(SyncBatchNormAt, ConvertedAfterInitialize) { train_once(std::make_shared<AloneImpl<torch::nn::BatchNorm2d>>(), true); }

INSTANTIATE_TEST_SUITE_P(Levels, SyncBatchNormAt, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"));

}  // namespace
}  // namespace apex::parallel
