#include <apex_cpp/parallel/sharded/shard_collectives.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <apex_cpp/parallel/processes/collectives.h>

#include <utility>
#include <vector>

#include "kernels/multi_tensor.h"

namespace apex::parallel::detail {
namespace {

// A group may have a backend for each kind of device.
bool is_nccl(const ProcessGroup& group, const at::Tensor& tensor) {
  return tensor.is_cuda() && group->getBackend(at::kCUDA)->getBackendName() == "nccl";
}

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.view(at::kByte); }

// ((piece 0 + piece 1) + piece 2) + ..., each sum rounded to float32.
at::Tensor sum_in_order(const std::vector<at::Tensor>& pieces) {
  const at::Tensor sum = at::empty(pieces[0].sizes(), pieces[0].options().dtype(at::kFloat));
  const at::Tensor unread = at::zeros({1}, sum.options().dtype(at::kInt));
  for (size_t rank = 1; rank < pieces.size(); ++rank) {
    kernels::multi_tensor_axpby(unread, {rank == 1 ? pieces[0] : sum}, {pieces[rank]}, {sum}, 1, 1, kernels::CheckArg::y);
  }
  return sum;
}

}  // namespace

ReduceScatter::ReduceScatter(ProcessGroup group, at::Tensor pieces, std::string what)
    : group_(std::move(group)), what_(std::move(what)), sent_(std::move(pieces)) {
  const int ranks = group_->getSize();
  if (ranks == 1) {
    received_ = sent_;
  } else if (is_nccl(group_, sent_)) {
    received_ = at::empty({sent_.numel() / ranks}, sent_.options());
    work_ = group_->_reduce_scatter_base(received_, sent_);
  } else {
    received_ = at::empty_like(sent_);
    at::Tensor to = bytes_of(received_), from = bytes_of(sent_);
    std::vector<int64_t> equal_parts;
    work_ = group_->alltoall_base(to, from, equal_parts, equal_parts);
  }
}

at::Tensor ReduceScatter::finish() {
  if (work_) wait(group_, work_, what_);
  const bool added = received_.numel() < sent_.numel();
  sent_.reset();
  if (added || group_->getSize() == 1) return std::exchange(received_, at::Tensor()).to(at::kFloat);
  return sum_in_order(std::exchange(received_, at::Tensor()).chunk(group_->getSize()));
}

AllGather::AllGather(ProcessGroup group, at::Tensor part, std::string what)
    : group_(std::move(group)), what_(std::move(what)), part_(std::move(part)) {
  const int ranks = group_->getSize();
  if (ranks == 1) {
    all_ = part_;
    return;
  }
  all_ = at::empty({part_.numel() * ranks}, part_.options());
  at::Tensor to = bytes_of(all_), from = bytes_of(part_);
  work_ = group_->_allgather_base(to, from);
}

at::Tensor AllGather::finish() {
  if (work_) wait(group_, work_, what_);
  part_.reset();
  return std::exchange(all_, at::Tensor());
}

}  // namespace apex::parallel::detail
