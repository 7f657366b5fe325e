#include "tests/distributed/ranks.h"
// Must follow ranks.h, whose templates it uses.
#include "tests/distributed/sharded_support.h"

#include <apex_cpp/parallel/processes/collectives.h>

namespace apex::testing::sharded {

at::Tensor eighths(at::IntArrayRef sizes, int64_t seed, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(seed);
  return (at::randint(-8, 9, sizes, generator, at::kFloat) / 8).to(dtype);
}

Tensors make_params(at::ScalarType dtype, int64_t seed) {
  Tensors params;
  for (at::IntArrayRef sizes : std::initializer_list<std::vector<int64_t>>{{7, 5}, {1}, {0, 3}, {301}, {2, 3, 4, 5}, {64}}) {
    at::Tensor param = eighths(sizes, seed * 100 + static_cast<int64_t>(params.size()), dtype);
    if (param.dim() == 4) param = param.contiguous(at::MemoryFormat::ChannelsLast);
    params.push_back(param.requires_grad_());
  }
  return params;
}

at::Tensor grad_of(const at::Tensor& param, size_t index, int rank, int step) {
  return eighths(param.sizes(), 1000 * step + 100 * rank + static_cast<int64_t>(index) + 7);
}

at::Tensor grad_sum_of(const at::Tensor& param, size_t index, int step) {
  at::Tensor sum = grad_of(param, index, 0, step);
  for (int other = 1; other < world_size(); ++other) sum = sum + grad_of(param, index, other, step);
  return sum;
}

Tensors sums_of_grads(const Tensors& params, int step) {
  Tensors sums;
  for (size_t i = 0; i < params.size(); ++i) sums.push_back(grad_sum_of(params[i], i, step));
  return sums;
}

DistributedFusedAdamOptions small_buckets(double lr) {
  return DistributedFusedAdamOptions(lr).weight_decay(0.01).bucket_cap_mb(0.001).average_grad_sync(false);
}
optimizers::FusedAdamOptions of_one_process(double lr) { return optimizers::FusedAdamOptions(lr).weight_decay(0.01); }

OneProcess::OneProcess(const Tensors& params, const optimizers::FusedAdamOptions& options)
    : dtype_(params[0].scalar_type()),
      masters_([&] {
        Tensors masters;
        for (const auto& param : params) masters.push_back(param.detach().clone().to(at::kFloat).requires_grad_());
        return masters;
      }()),
      optimizer_(masters_, options) {}

void OneProcess::step(const Tensors& grads) {
  for (size_t i = 0; i < masters_.size(); ++i) masters_[i].mutable_grad() = grads[i];
  optimizer_.step();
}

Tensors OneProcess::params() const {
  Tensors params;
  for (const auto& master : masters_) params.push_back(master.detach().to(dtype_));
  return params;
}

bool same_on_all_ranks(const Tensors& tensors) {
  bool same = true;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const at::Tensor local = tensor.detach().contiguous();
    for (const auto& other : parallel::all_gather(parallel::default_process_group(), local, "comparing")) {
      same &= same_bytes(other, local);
    }
  }
  return same;
}

std::vector<parallel::ProcessGroup> first_ranks() {
  std::vector<parallel::ProcessGroup> groups;
  std::vector<int> ranks;
  for (int each = 0; each < world_size(); ++each) {
    ranks.push_back(each);
    groups.push_back(parallel::new_group(ranks));
  }
  return groups;
}

std::string from_rank_0(const std::string& text) {
  return parallel::gather_strings(parallel::default_process_group(), text, "sending rank 0's text").front();
}

}  // namespace apex::testing::sharded
