#include <apex_cpp/amp/casts/node_ranges.h>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstring>
#include <typeinfo>

namespace apex::amp::detail {
namespace {

constexpr size_t kMostRanges = 4096;  // more than the scopes of one forward pass

}  // namespace

uint64_t NodeRanges::next_node() { return at::sequence_number::peek(); }

void NodeRanges::add(uint64_t first) {
  const uint64_t end = next_node();
  if (first == end) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  ranges_.push_front({at::RecordFunction::currentThreadId(), first, end});
  if (ranges_.size() > kMostRanges) ranges_.pop_back();
}

bool NodeRanges::has(const torch::autograd::Node& node) const {
  const uint64_t number = node.sequence_nr(), thread = node.thread_id();
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const Range& range) { return range.thread == thread && range.first <= number && number < range.end; });
}

NodeRanges& nodes_without_casts() {
  static NodeRanges nodes;
  return nodes;
}

NodeRanges& nodes_of_handles() {
  static NodeRanges nodes;
  return nodes;
}

NodeRanges& nodes_with_custom_fwd() {
  static NodeRanges nodes;
  return nodes;
}

bool is_custom_function(const torch::autograd::Node& node) { return std::strstr(typeid(node).name(), "CppNode") != nullptr; }

}  // namespace apex::amp::detail
