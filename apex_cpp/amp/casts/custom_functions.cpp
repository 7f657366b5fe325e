#include <apex_cpp/amp/casts/custom_functions.h>

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/torch_compat/autograd.h>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <vector>

namespace apex::amp::detail {
namespace {

constexpr size_t kMostRanges = 4096;  // one forward pass has fewer scopes

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

namespace {

using torch::autograd::Node;

// Visits each node once, without recursion: a long graph would overflow the stack.
template <class Visit>
void for_each_node(Node* root, Visit visit) {
  std::unordered_set<Node*> seen{root};
  std::vector<Node*> open{root};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    visit(*node);
    for (const auto& edge : node->next_edges()) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
}

// The class T of torch::autograd::CppNode<T>; empty for classes of LibTorch and of this library.
std::string class_of(const Node& node) {
  const std::string name = node.name();
  const auto first = name.find('<') + 1;
  const std::string own = name.substr(first, name.rfind('>') - first);
  const bool is_known = own.rfind("torch::", 0) == 0 || own.rfind("apex::", 0) == 0;
  return is_known ? std::string() : own;
}

std::optional<c10::ScalarType> low_input_of(const Node& node) {
  for (const auto& edge : node.next_edges()) {
    if (!edge.is_valid()) continue;
    const auto type = c10::typeMetaToScalarType(edge.function->input_metadata(edge.input_nr).dtype());
    if (kLowTypes.has(type)) return type;
  }
  return std::nullopt;
}

}  // namespace

void CustomFunctions::look(const at::Tensor& loss, int64_t loss_id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!losses_.insert(loss_id).second || !loss.grad_fn()) return;
  for_each_node(loss.grad_fn().get(), [&](const Node& node) {
    if (!torch_compat::is_function_node(node) || nodes_with_custom_fwd().has(node)) return;
    const auto type = low_input_of(node);
    const std::string name = type ? class_of(node) : std::string();
    if (name.empty() || !classes_.insert(name).second) return;
    TORCH_WARN("amp: the torch::autograd::Function ", name, " was given a ", *type,
               " tensor that amp's casts made. If its code reads memory as float, its results are wrong. Apply it through "
               "amp::float_function, or write its forward with amp::custom_fwd, which casts its inputs to a dtype of your "
               "choice, or without a dtype declares that the function takes any.");
  });
}

}  // namespace apex::amp::detail
