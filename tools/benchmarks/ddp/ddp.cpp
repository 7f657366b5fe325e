// The cost of gradient reduction over processes in a training step: DistributedDataParallel, c10d's Reducer driven as in
// PyTorch's own DistributedDataParallel, and one all-reduce after the backward pass. Then whole steps: FusedAdam with
// DistributedDataParallel, and DistributedFusedAdam, with the optimizer state per rank. Both parts report the bytes that a rank
// sent.
#include <ATen/Parallel.h>
#include <apex_cpp/parallel.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "../suites.h"
#include "bytes_sent.h"
#include "other_ranks.h"

namespace bench {
namespace ddp {
namespace {

namespace parallel = apex::parallel;

constexpr int kRanks = 2, kStepsARound = 4;
constexpr int64_t kFirstBucketBytes = 1 << 20, kBucketBytes = 25 << 20;  // PyTorch's defaults

struct Case {
  const char* name;
  int layers;
  int64_t width, batch;
};
constexpr Case kCases[] = {
    {"60 layers of 256", 60, 256, 16}, {"6 layers of 1024", 6, 1024, 16}, {"3 layers of 2048", 3, 2048, 16}};

torch::nn::Sequential network(const Case& shape) {
  torch::nn::Sequential net;
  for (int i = 0; i < shape.layers; ++i) net->push_back(torch::nn::Linear(shape.width, shape.width));
  return net;
}

/// A training step without an optimizer, in one of several ways.
struct Way {
  std::string name;
  std::function<void(const at::Tensor& input)> step;
  /// The bytes of optimizer state on this rank after a step.
  std::function<int64_t()> state_bytes = nullptr;
};

Way plain(const Case& shape) {
  auto net = network(shape);
  auto reducer = std::make_shared<parallel::Reducer>(net);
  return {"after backward", [net, reducer](const at::Tensor& input) mutable {
            net->zero_grad();
            net->forward(input).sum().backward();
            reducer->reduce();
          }};
}

Way ours(const Case& shape) {
  auto net = network(shape);
  auto ddp = std::make_shared<parallel::DistributedDataParallel<torch::nn::Sequential>>(net);
  return {"apex", [ddp](const at::Tensor& input) {
            (*ddp)->zero_grad();
            (*ddp)(input).sum().backward();
          }};
}

std::shared_ptr<c10d::Reducer> reducer_of(const std::vector<at::Tensor>& params) {
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(params, {kFirstBucketBytes, kBucketBytes});
  std::reverse(buckets.begin(), buckets.end());
  return std::make_shared<c10d::Reducer>(
      params, buckets, parallel::default_process_group(), std::vector<bool>(params.size(), false), kBucketBytes,
      /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/false, std::unordered_map<size_t, std::string>{},
      kFirstBucketBytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>{});
}

Way c10ds(const Case& shape) {
  auto net = network(shape);
  auto reducer = reducer_of(net->parameters());
  return {"c10d", [net, reducer](const at::Tensor& input) mutable {
            net->zero_grad();
            reducer->rebuild_buckets();
            reducer->prepare_for_forward();
            const at::Tensor loss = net->forward(input).sum();
            reducer->prepare_for_backward({loss});
            loss.backward();
          }};
}

constexpr double kAdamBytes = 8;  // two float32 moments per float32 parameter

Way whole_step(const Case& shape) {
  auto net = network(shape);
  auto ddp = std::make_shared<parallel::DistributedDataParallel<torch::nn::Sequential>>(net);
  auto adam = std::make_shared<apex::optimizers::FusedAdam>(net->parameters());
  return {"FusedAdam", [ddp, adam](const at::Tensor& input) {
            adam->zero_grad();
            (*ddp)(input).sum().backward();
            adam->step();
          }};
}

Way sharded_step(const Case& shape) {
  auto net = network(shape);
  auto adam = std::make_shared<parallel::DistributedFusedAdam>(net->parameters());
  return {"DistributedFusedAdam",
          [net, adam](const at::Tensor& input) mutable {
            adam->zero_grad();
            net->forward(input).sum().backward();
            adam->step();
          },
          [adam] { return adam->state_bytes(); }};
}

std::vector<Way> reductions(const Case& shape) { return {ours(shape), c10ds(shape), plain(shape)}; }
std::vector<Way> whole_steps(const Case& shape) { return {whole_step(shape), sharded_step(shape)}; }

/// Bytes that this rank sent, and the number of steps.
struct Traffic {
  int64_t bytes = 0, steps = 0;

  double megabytes_a_step() const { return static_cast<double>(bytes) / static_cast<double>(steps) / 1e6; }
};

/// One variant per way. `traffic` gets an entry for each and must outlive the variants.
std::vector<Variant> variants_of(const Case& shape, const std::vector<Way>& ways, std::vector<Traffic>& traffic) {
  const at::Tensor input = torch::ones({shape.batch, shape.width});
  traffic.resize(ways.size());
  std::vector<Variant> variants;
  for (size_t i = 0; i < ways.size(); ++i) {
    variants.push_back({ways[i].name, [step = ways[i].step, input, &sent = traffic[i]] {
                          const int64_t before = tcp_bytes_sent();
                          const double nanoseconds = nanoseconds_per_call([&] { step(input); }, kStepsARound);
                          sent.bytes += tcp_bytes_sent() - before;
                          sent.steps += kStepsARound;
                          return nanoseconds;
                        }});
  }
  return variants;
}

void join(int rank, int ranks, const std::string& store) {
  parallel::init_process_group(
      parallel::ProcessGroupOptions().backend("gloo").init_method("file://" + store).rank(rank).world_size(ranks));
}

// Runs the same rounds as rank 0, whose clock is the one that counts.
void run_further_rank() {
  const FurtherRank self = further_rank();
  at::set_num_threads(1);
  join(self.rank, self.ranks, self.store);
  std::vector<Traffic> traffic;
  for (const auto& ways_of : {reductions, whole_steps})
    for (const Case& shape : kCases) interleave(variants_of(shape, ways_of(shape), traffic), self.rounds, [](int) {});
  parallel::default_process_group()->barrier()->wait();
}

double params(const Case& shape) { return static_cast<double>(shape.layers * (shape.width + 1) * shape.width); }

/// Megabytes that one rank sends in a ring all-reduce: 2 (N - 1) / N of its gradients. Reduce-scatter of gradients plus
/// all-gather of parameters send the same amount.
double megabytes_in_a_ring(const Case& shape) { return 2.0 * (kRanks - 1) / kRanks * 4.0 * params(shape) / 1e6; }

void measure_reductions(Runner& runner, const Case& shape) {
  std::vector<Traffic> sent;
  const auto medians = runner.medians(shape.name, /*threads=*/1, variants_of(shape, reductions(shape), sent));
  Result result{"gradients reduced, 2 processes", shape.name, 1, {}};
  const double ours = medians[0], c10ds = medians[1], after = medians[2];
  result.values = {{"apex_cpp ms", ours / 1e6},
                   {"c10d ms", c10ds / 1e6},
                   {"after backward ms", after / 1e6},
                   {"apex_cpp/c10d", ours / c10ds},
                   {"apex_cpp/after backward", ours / after},
                   {"ring MB", megabytes_in_a_ring(shape)},
                   {"apex_cpp sent MB", sent[0].megabytes_a_step()},
                   {"c10d sent MB", sent[1].megabytes_a_step()}};
  runner.add(std::move(result));
}

void measure_whole_steps(Runner& runner, const Case& shape) {
  const auto ways = whole_steps(shape);
  std::vector<Traffic> sent;
  const auto medians = runner.medians(shape.name, /*threads=*/1, variants_of(shape, ways, sent));
  Result result{"whole steps with Adam, 2 processes", shape.name, 1, {}};
  result.values = {{"FusedAdam ms", medians[0] / 1e6},
                   {"sharded ms", medians[1] / 1e6},
                   {"sharded/FusedAdam", medians[1] / medians[0]},
                   {"ring MB", megabytes_in_a_ring(shape)},
                   {"FusedAdam sent MB", sent[0].megabytes_a_step()},
                   {"sharded sent MB", sent[1].megabytes_a_step()},
                   {"state MB", kAdamBytes * params(shape) / 1e6},
                   {"sharded state MB", static_cast<double>(ways[1].state_bytes()) / 1e6}};
  runner.add(std::move(result));
}

}  // namespace
}  // namespace ddp

void run_ddp(Runner& runner) {
  if (ddp::is_further_rank()) {
    ddp::run_further_rank();
    std::_Exit(EXIT_SUCCESS);
  }
  const ddp::OtherRanks others(ddp::kRanks, runner.rounds());
  ddp::join(0, ddp::kRanks, others.store());
  for (const auto& measure : {ddp::measure_reductions, ddp::measure_whole_steps}) {
    for (const ddp::Case& shape : ddp::kCases) measure(runner, shape);
    runner.print_group();
  }
  apex::parallel::default_process_group()->barrier()->wait();
  apex::parallel::destroy_process_group();
}

}  // namespace bench
