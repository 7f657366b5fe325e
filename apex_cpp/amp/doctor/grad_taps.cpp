#include <apex_cpp/amp/doctor/grad_taps.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace apex::amp::detail {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Maps a node's gradients to the call's outputs and inputs.
struct Tap {
  std::vector<std::pair<size_t, size_t>> outputs;  // the node's input -> the call's output
  std::vector<std::pair<size_t, size_t>> inputs;   // the node's edge -> the call's input
};

class TapHook : public torch::autograd::FunctionPostHook {
 public:
  TapHook(size_t call, Tap tap, std::weak_ptr<GradSink> sink) : call_(call), tap_(std::move(tap)), sink_(std::move(sink)) {}

  variable_list operator()(const variable_list& grad_inputs, const variable_list& grad_outputs) override {
    if (const auto sink = sink_.lock()) {
      for (const auto& [from, output] : tap_.outputs) {
        if (from < grad_outputs.size() && grad_outputs[from].defined())
          sink->add_output_grad(call_, output, grad_outputs[from]);
      }
      for (const auto& [edge, input] : tap_.inputs) {
        if (edge < grad_inputs.size() && grad_inputs[edge].defined()) sink->add_input_grad(call_, input, grad_inputs[edge]);
      }
    }
    return grad_inputs;
  }

 private:
  size_t call_;
  Tap tap_;
  std::weak_ptr<GradSink> sink_;
};

bool is_leaf(const Node& node) { return node.sequence_nr() == std::numeric_limits<uint64_t>::max(); }
bool is_cast(const Node& node) { return node.num_outputs() == 1 && node.name() == "ToCopyBackward0"; }
bool is_cast_of_leaf(const Node& node) {
  return is_cast(node) && node.next_edge(0).is_valid() && is_leaf(*node.next_edge(0).function);
}

class GraphWalk {
 public:
  explicit GraphWalk(const TappedCall& call) : call_(call) {}

  void from_output(size_t output) {
    const auto& tensor = call_.outputs[output];
    const auto& node = tensor.grad_fn();
    if (!node || !belongs(*node)) return;
    taps_[node.get()].outputs.emplace_back(tensor.output_nr(), output);
    visit(*node);
  }
  void add_hooks(const std::weak_ptr<GradSink>& sink) {
    for (auto& [node, tap] : taps_) {
      if (!tap.outputs.empty() || !tap.inputs.empty()) {
        node->add_post_hook(std::make_unique<TapHook>(call_.number, std::move(tap), sink));
      }
    }
  }

 private:
  bool belongs(const Node& node) const { return !is_leaf(node) && node.sequence_nr() >= call_.first_node; }

  void visit(Node& node) {
    if (!visited_.insert(&node).second) return;
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      const Edge& edge = node.next_edge(i);
      if (!edge.is_valid()) continue;
      const Edge& target = is_cast_of_leaf(*edge.function) ? edge.function->next_edge(0) : edge;
      const size_t input = input_at(target);
      if (input < call_.inputs.size()) {
        taps_[&node].inputs.emplace_back(i, input);
      } else if (belongs(*edge.function)) {
        visit(*edge.function);
      }
    }
  }

  size_t input_at(const Edge& edge) const {
    size_t input = 0;
    while (input < call_.inputs.size() && !(call_.inputs[input] == edge)) ++input;
    return input;
  }

  const TappedCall& call_;
  std::unordered_map<Node*, Tap> taps_;
  std::unordered_set<const Node*> visited_;
};

}  // namespace

void tap_gradients(const TappedCall& call, const std::weak_ptr<GradSink>& sink) {
  GraphWalk walk(call);
  for (size_t i = 0; i < call.outputs.size(); ++i) walk.from_output(i);
  walk.add_hooks(sink);
}

void tap_function(size_t call, Node& function, const std::weak_ptr<GradSink>& sink) {
  Tap tap;
  for (size_t i = 0; i < function.num_inputs(); ++i) tap.outputs.emplace_back(i, i);
  for (size_t i = 0; i < function.num_outputs(); ++i) tap.inputs.emplace_back(i, i);
  function.add_post_hook(std::make_unique<TapHook>(call, std::move(tap), sink));
}

}  // namespace apex::amp::detail
