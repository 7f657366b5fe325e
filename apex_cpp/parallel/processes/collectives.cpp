#include <apex_cpp/parallel/processes/collectives.h>

#include <apex_cpp/apex_C.h>
#include <apex_cpp/parallel/processes/backends.h>
#include <apex_cpp/parallel/processes/process_group.h>

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

namespace apex::parallel {
namespace {

using TensorLists = std::vector<std::vector<at::Tensor>>;

TensorLists lists_of_one_type(const std::vector<at::Tensor>& tensors) {
  TensorLists lists;
  for (const at::Tensor& tensor : tensors) {
    const auto is_alike = [&](const auto& list) {
      return list.front().scalar_type() == tensor.scalar_type() && list.front().device() == tensor.device();
    };
    const auto list = std::find_if(lists.begin(), lists.end(), is_alike);
    list == lists.end() ? lists.push_back({tensor}) : list->push_back(tensor);
  }
  return lists;
}

}  // namespace

void flat_dist_call(const std::vector<at::Tensor>& tensors, const FlatCall& call) {
  const at::NoGradGuard no_grad;
  for (const auto& list : lists_of_one_type(tensors)) {
    const at::Tensor flat = apex_C::flatten(list);
    call(flat);
    const auto values = apex_C::unflatten(flat, list);
    for (size_t i = 0; i < list.size(); ++i) list[i].copy_(values[i]);
  }
}

FlatCall all_reduce_mean(const ProcessGroup& given, const std::string& what) {
  return [group = or_default(given), what](const at::Tensor& flat) {
    all_reduce(group, flat, what);
    flat.div_(group->getSize());
  };
}

FlatCall broadcast_from(int root, const ProcessGroup& given, const std::string& what) {
  return
      [group = or_default(given), root, what](const at::Tensor& flat) { broadcast(group, flat.view(at::kByte), root, what); };
}

namespace {

using std::chrono::milliseconds;

void check_member(const ProcessGroup& group, const std::string& what) {
  TORCH_CHECK_VALUE(group.defined() && is_member(group), what, ": this process is not a member of the given group");
}

/// How often a waiting rank asks the store whether another rank has given up.
constexpr milliseconds kPatience{1000};

bool ended_within(c10d::Work& work, milliseconds patience) {
  try {
    work.wait(patience);
  } catch (const std::exception&) {
    if (!work.isCompleted()) return false;
    work.wait();  // throws the error of the operation, unless the operation has finished since
  }
  return true;
}

void wait_on_host(const ProcessGroup& group, c10d::Work& work) {
  while (!ended_within(work, kPatience)) TORCH_CHECK(!detail::any_failure(group), "another rank has failed");
}

void wait_for(const ProcessGroup& group, c10d::Work& work) {
  detail::is_of_gloo(work) ? wait_on_host(group, work) : (void)work.wait();
}

// `start` returns the operation that it started.
template <class Start>
void run(const ProcessGroup& group, const std::string& what, const Start& start) {
  check_member(group, what);
  try {
    wait_for(group, *start());
  } catch (const std::exception& error) {
    detail::fail(group, what, error.what());
  }
}

// `start(row)` starts an operation on the tensor's elements side by side, which Gloo takes for granted.
template <class Start>
void run_in_row(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what, const Start& start) {
  const at::NoGradGuard no_grad;
  at::Tensor row = tensor;
  const bool has_strides = tensor.layout() == at::kStrided;
  if (has_strides) at::assert_no_internal_overlap(tensor);
  run(group, what, [&] {
    if (has_strides) row = tensor.contiguous();
    // amp shares a gradient's memory until it is written. NCCL would ask for it, and so start the copy, after it has recorded
    // what its own stream waits for.
    if (has_strides && row.is_cuda()) row.mutable_data_ptr();
    return start(row);
  });
  if (!row.is_same(tensor)) tensor.copy_(row);
}

std::vector<at::Tensor> like(const at::Tensor& tensor, int count) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(at::empty_like(tensor));
  return tensors;
}

at::Tensor padded_bytes(const std::string& text, int64_t size) {
  auto bytes = at::zeros({size}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());  // of no bytes the address is null, which memcpy must not get
  return bytes;
}

std::string as_text(const at::Tensor& bytes, int64_t size) {
  const auto on_host = bytes.cpu();
  return {reinterpret_cast<const char*>(on_host.data_ptr<uint8_t>()), static_cast<size_t>(size)};
}

// The first lines in which two texts differ.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream in_a(a), in_b(b);
  std::string line_a, line_b;
  while (line_a == line_b) {
    const bool more_a = static_cast<bool>(std::getline(in_a, line_a)), more_b = static_cast<bool>(std::getline(in_b, line_b));
    const bool more = more_a || more_b;
    if (!in_a) line_a = "nothing more";
    if (!in_b) line_b = "nothing more";
    if (!more) break;
  }
  return {line_a, line_b};
}

}  // namespace

at::Device device_for(const ProcessGroup& group) {
  if (group->getBackendType() != c10d::ProcessGroup::BackendType::NCCL) return at::kCPU;
  return c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
}

namespace detail {

void wait(const ProcessGroup& group, const c10::intrusive_ptr<c10d::Work>& work, const std::string& what) {
  try {
    wait_for(group, *work);
  } catch (const std::exception& error) {
    fail(group, what, error.what());
  }
}

}  // namespace detail

void all_reduce(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what, const c10d::ReduceOp& op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  // Gloo adds bools as bytes.
  if (tensor.scalar_type() == at::kBool && op == c10d::ReduceOp::SUM) options.reduceOp = c10d::ReduceOp::MAX;
  run_in_row(group, tensor, what, [&](const at::Tensor& row) {
    std::vector<at::Tensor> tensors{row};
    return group->allreduce(tensors, options);
  });
}

void broadcast(const ProcessGroup& group, const at::Tensor& tensor, int root, const std::string& what) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  run_in_row(group, tensor, what, [&](const at::Tensor& row) {
    std::vector<at::Tensor> tensors{row};
    return group->broadcast(tensors, options);
  });
}

std::vector<at::Tensor> all_gather(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what) {
  std::vector<at::Tensor> input{tensor.contiguous()};
  std::vector<std::vector<at::Tensor>> outputs{like(input[0], group->getSize())};
  run(group, what, [&] { return group->allgather(outputs, input); });
  return outputs[0];
}

namespace detail {

at::Device message_device(const ProcessGroup& group, const at::Tensor& tensor) {
  return tensor.is_cpu() ? device_for(group) : tensor.device();
}

void all_reduce_copy(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what, const c10d::ReduceOp& op) {
  const at::Tensor copy = tensor.to(message_device(group, tensor));
  all_reduce(group, copy, what, op);
  if (!copy.is_same(tensor)) tensor.copy_(copy);
}

std::vector<int> ranks_where(const ProcessGroup& group, bool here, const std::string& what) {
  const auto flags = all_gather(group, at::full({1}, here, at::TensorOptions(device_for(group)).dtype(at::kInt)), what);
  std::vector<int> ranks;
  for (size_t rank = 0; rank < flags.size(); ++rank) {
    if (flags[rank].item<int32_t>() != 0) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace detail

std::vector<std::string> gather_strings(const ProcessGroup& group, const std::string& mine, const std::string& what) {
  const auto device = device_for(group);
  const auto sizes = all_gather(group, at::full({1}, static_cast<int64_t>(mine.size()), at::kLong).to(device), what);
  int64_t longest = 0;
  for (const auto& size : sizes) longest = std::max(longest, size.item<int64_t>());
  const auto texts = all_gather(group, padded_bytes(mine, longest).to(device), what);
  std::vector<std::string> strings;
  for (size_t rank = 0; rank < texts.size(); ++rank) strings.push_back(as_text(texts[rank], sizes[rank].item<int64_t>()));
  return strings;
}

void expect_same(const ProcessGroup& group, const std::string& mine, const std::string& what) {
  const auto texts = gather_strings(group, mine, what);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const auto [first, other] = first_difference(texts[0], texts[rank]);
    TORCH_CHECK_VALUE(texts[rank] == texts[0], what, ": rank ", rank, " differs from rank 0.\n  rank 0: ", first, "\n  rank ",
                      rank, ": ", other);
  }
}

}  // namespace apex::parallel
