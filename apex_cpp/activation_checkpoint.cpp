#include <apex_cpp/activation_checkpoint.h>

#include <ATen/SequenceNumber.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <apex_cpp/activation_checkpoint/detail/call_state.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/torch_compat/autograd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>

namespace apex::detail {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch_compat::NodePtr;

template <class T>
auto new_node() {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>) {
    return std::shared_ptr<T>(new T, [](T* node) { deleteNode(node); });  // of torch::autograd, which LibTorch 2.13 lacks
  } else {
    return c10::make_intrusive<T>();
  }
}

using Key = std::pair<const Node*, uint32_t>;
Key key_of(const Edge& edge) { return {edge.function.get(), edge.input_nr}; }

bool is_leaf(const Edge& edge) { return dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get()) != nullptr; }

// The leaf, such as a parameter, that an edge leads to.
at::Tensor leaf_of(const Edge& edge) { return static_cast<const torch::autograd::AccumulateGrad&>(*edge.function).variable; }

std::vector<int64_t> versions_of_leaves(const edge_list& edges) {
  std::vector<int64_t> versions;
  for (const Edge& edge : edges) versions.push_back(is_leaf(edge) ? static_cast<int64_t>(leaf_of(edge)._version()) : 0);
  return versions;
}

// Takes the gradients that reach an edge out of a segment's graph, before hooks see them.
struct Collector final : Node {
  void stand_for(const Edge& edge) { input_metadata_.emplace_back(edge.function->input_metadata(edge.input_nr)); }
  variable_list apply(variable_list&&) override { return {}; }
  std::string name() const override { return "apex::checkpoint (inner)"; }
};

// Calls `visit(edge)` for the edges of the graph that begins with `outputs`. It may change the edge; the graph goes on behind
// it if it returns true.
template <class Visit>
void walk(edge_list& outputs, const Visit& visit) {
  std::unordered_set<const Node*> seen;
  std::vector<Node*> waiting;
  const auto follow = [&](edge_list& edges) {
    for (Edge& edge : edges) {
      if (!edge.is_valid() || !visit(edge)) continue;
      if (seen.insert(edge.function.get()).second) waiting.push_back(edge.function.get());
    }
  };
  follow(outputs);
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    follow(node->next_edges());
  }
}

// The edges that lead out of a segment: to leaves, and to nodes from before the segment, whose first node has this number on
// this thread.
edge_list edges_out(edge_list outputs, uint64_t first_number) {
  const uint64_t thread = at::RecordFunction::currentThreadId();
  edge_list out;
  std::set<Key> found;
  walk(outputs, [&](const Edge& edge) {
    const Node& node = *edge.function;
    if (!is_leaf(edge) && node.thread_id() == thread && node.sequence_nr() >= first_number) return true;
    if (found.insert(key_of(edge)).second) out.push_back(edge);
    return false;
  });
  return out;
}

edge_list gradient_edges(const TensorList& tensors) {
  edge_list edges;
  for (const at::Tensor& tensor : tensors) {
    const bool differentiable = tensor.defined() && tensor.requires_grad();
    edges.push_back(differentiable ? torch::autograd::impl::gradient_edge(tensor) : Edge());
  }
  return edges;
}

// The node of all results of a segment.
class Recomputation final : public Node {
 public:
  void save(const Segment& segment, std::vector<SavedVariable> inputs, const TensorList& buffers, const CallState& state,
            edge_list ends) {
    segment_ = segment;
    versions_ = versions_of_leaves(ends);
    ends_ = ends;
    set_next_edges(std::move(ends));
    inputs_ = std::move(inputs);
    buffers_ = buffers;
    state_.emplace(state);
  }
  /// The next result of the first call.
  void expect(const at::Tensor& result) {
    if (result.defined() && result.requires_grad()) differentiable_.push_back(results_.size());
    results_.push_back(result.defined() ? at::empty_like(result, at::kMeta) : result);
  }

  variable_list apply(variable_list&& grads) override;
  void release_variables() override {
    inputs_.clear();
    segment_ = nullptr;
    buffers_.clear();
    ends_.clear();
    versions_.clear();
    state_.reset();
  }
  std::string name() const override { return "apex::checkpoint"; }

 private:
  void check_leaves(const std::vector<int64_t>& before_call) const;
  TensorList compute_again() const;
  void check(const TensorList& results) const;
  edge_list collect_at_ends(edge_list& roots) const;

  Segment segment_;
  edge_list ends_;  // this node's edges, also after a checkpoint around this one has put collectors in their place
  std::vector<int64_t> versions_;  // of the leaves at the ends, such as parameters
  std::vector<SavedVariable> inputs_;
  TensorList buffers_;
  TensorList results_;                  // of the first call, without memory
  std::vector<size_t> differentiable_;  // positions of the results that this node is the node of
  std::optional<CallState> state_;
};

// Puts the values of buffers back at its end. Kernels that write running statistics do not raise the version of the buffer;
// where it has not been raised, this does not raise it either: graphs outside of the segment may have saved the buffer. Left
// out are buffers that nobody can write in place, such as expanded ones.
class KeptBuffers {
 public:
  explicit KeptBuffers(const TensorList& buffers) {
    for (const at::Tensor& buffer : buffers) {
      if (amp::detail::is_writable(buffer)) kept_.push_back({buffer, buffer.detach().clone(), buffer._version()});
    }
  }
  ~KeptBuffers() {
    const at::NoGradGuard no_grad;
    for (const auto& [buffer, value, version] : kept_)
      (buffer._version() == version ? buffer.data() : buffer.detach()).copy_(value);
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

 private:
  struct Kept {
    at::Tensor buffer, value;
    int64_t version;
  };
  std::vector<Kept> kept_;
};

// The results of the first call came from the leaves' values then. A leaf that the function itself writes, as an embedding with
// max_norm does, is left out.
void Recomputation::check_leaves(const std::vector<int64_t>& before_call) const {
  const auto now = versions_of_leaves(ends_);
  for (size_t i = 0; i < ends_.size(); ++i) {
    TORCH_CHECK(
        before_call[i] == versions_[i] || now[i] != before_call[i], "apex::checkpoint: a parameter of shape ",
        leaf_of(ends_[i]).sizes(),
        " that the function uses was written between the call and its backward pass, so that the gradients would belong "
        "to other results. Run backward before optimizer.step().");
  }
}

TensorList Recomputation::compute_again() const {
  TensorList inputs;
  for (const SavedVariable& input : inputs_) inputs.push_back(input.unpack());
  const auto results = state_->again([&] {
    const at::AutoGradMode with_graph(true);
    const NoCastCaches uncached;
    return segment_(inputs);
  });
  check(results);
  return results;
}

std::string describe(const at::Tensor& tensor) {
  return tensor.defined() ? c10::str(tensor.scalar_type(), tensor.sizes()) : "undefined";
}

void Recomputation::check(const TensorList& results) const {
  TORCH_CHECK(results.size() == results_.size(), "apex::checkpoint: the function returned ", results_.size(), " tensors, and ",
              results.size(), " when it was called again. It must compute the same each time.");
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor &now = results[i], &before = results_[i];
    const bool same = now.defined() == before.defined() &&
                      (!now.defined() || (now.sizes() == before.sizes() && now.scalar_type() == before.scalar_type()));
    TORCH_CHECK(same, "apex::checkpoint: result ", i, " of the function was ", describe(before), ", and ", describe(now),
                " when it was called again. It must compute the same each time.");
  }
}

variable_list Recomputation::apply(variable_list&& grads) {
  TORCH_CHECK(segment_, torch::autograd::ERR_BACKWARD_TWICE);
  const KeptBuffers kept(buffers_);  // until the end: the nodes of the segment may have saved them
  const auto versions = versions_of_leaves(ends_);
  const TensorList results = compute_again();
  check_leaves(versions);
  const edge_list edges = gradient_edges(results);
  edge_list roots;
  variable_list root_grads;
  for (size_t i = 0; i < differentiable_.size(); ++i) {
    const Edge& edge = edges[differentiable_[i]];
    if (!grads[i].defined() || !edge.is_valid()) continue;
    roots.push_back(edge);
    root_grads.push_back(grads[i]);
  }
  if (roots.empty()) return variable_list(num_outputs());
  auto& engine = torch::autograd::Engine::get_default_engine();
  // The graph of the gradients needs this graph as it is.
  if (at::GradMode::is_enabled()) return engine.execute(roots, root_grads, true, true, /*accumulate_grad=*/false, ends_);
  const edge_list ends = collect_at_ends(roots);
  return engine.execute(roots, root_grads, false, false, /*accumulate_grad=*/false, ends);
}

// Lets the edges that lead out of the graph end in collectors, one for each edge of this node.
edge_list Recomputation::collect_at_ends(edge_list& roots) const {
  edge_list ends;
  std::map<Key, size_t> positions;
  for (const Edge& edge : ends_) {
    const auto collector = new_node<Collector>();
    collector->stand_for(edge);
    positions.emplace(key_of(edge), ends.size());
    ends.emplace_back(collector, 0);
  }
  walk(roots, [&](Edge& edge) {
    const auto position = positions.find(key_of(edge));
    if (position != positions.end()) {
      edge = ends[position->second];
      return false;
    }
    TORCH_CHECK(!is_leaf(edge),
                "apex::checkpoint: when the function was called again, it used a parameter that it had not used before. "
                "It must compute the same each time.");
    return true;
  });
  return ends;
}

// A result as a tensor of its own. Without the graph, autograd would not see that it shares memory with an input, a parameter
// or an earlier result.
at::Tensor without_graph(const at::Tensor& result, const TensorList& inputs, const edge_list& ends, const TensorList& earlier) {
  if (!result.defined()) return result;
  const auto is_shared = [&](const at::Tensor& other) {
    return other.defined() && other.has_storage() && result.has_storage() && other.is_alias_of(result);
  };
  const bool shared =
      std::any_of(inputs.begin(), inputs.end(), is_shared) || std::any_of(earlier.begin(), earlier.end(), is_shared) ||
      std::any_of(ends.begin(), ends.end(), [&](const Edge& edge) { return is_leaf(edge) && is_shared(leaf_of(edge)); });
  return shared ? result.detach().clone() : result.detach();
}

}  // namespace

TensorList checkpoint(const Segment& segment, const TensorList& inputs, const TensorList& buffers) {
  if (!at::GradMode::is_enabled()) return segment(inputs);
  std::vector<SavedVariable> saved;  // before the call, so that one that the function writes is found to be written
  for (const at::Tensor& input : inputs) saved.emplace_back(input, /*is_output=*/false);
  CallState state(inputs);
  static_cast<void>(gradient_edges(inputs));  // autograd makes the node of a view whose base was written at the first question
  const uint64_t first_number = at::sequence_number::peek();
  const auto with_graph = [&] {
    const NoCastCaches uncached;
    return segment(inputs);
  }();
  edge_list edges = edges_out(gradient_edges(with_graph), first_number);
  if (edges.empty()) return with_graph;
  state.drop_unused_generators();
  const auto node = new_node<Recomputation>();
  node->save(segment, std::move(saved), buffers, state, edges);
  TensorList results;
  for (const at::Tensor& result : with_graph) {
    results.push_back(without_graph(result, inputs, edges, results));
    node->expect(result);
    if (result.defined() && result.requires_grad()) torch::autograd::set_history(results.back(), node);
  }
  return results;
}

}  // namespace apex::detail

namespace apex {

at::Tensor checkpoint_sequential(const torch::nn::Sequential& modules, int64_t segments, at::Tensor input) {
  const auto size = static_cast<int64_t>(modules->size());
  TORCH_CHECK_VALUE(segments >= 1 && segments <= size, "checkpoint_sequential: segments is ", segments, ". Use 1 to ", size,
                    ", the number of modules.");
  const auto slice = [&modules](int64_t begin, int64_t end) {
    torch::nn::Sequential part;
    for (int64_t i = begin; i < end; ++i) part->push_back(*(modules->begin() + i));
    return part;
  };
  const int64_t part = size / segments, last = part * (segments - 1);
  for (int64_t begin = 0; begin < last; begin += part) input = checkpoint(slice(begin, begin + part), input);
  return slice(last, size)->forward(input);
}

}  // namespace apex
