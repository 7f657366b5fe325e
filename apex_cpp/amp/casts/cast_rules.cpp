#include <apex_cpp/amp/casts/cast_rules.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>

namespace apex::amp::detail {
namespace {

bool is_transpose(const at::Tensor& tensor, const at::Tensor& base) {
  return tensor.dim() == 2 && base.dim() == 2 && tensor.size(0) == base.size(1) && tensor.size(1) == base.size(0) &&
         tensor.stride(0) == base.stride(1) && tensor.stride(1) == base.stride(0);
}

// Whether gradients go from the view to its base as from any transpose: not where it was made without gradients, and not past
// a hook on the view.
bool is_transparent(const torch::autograd::AutogradMeta& view, const at::Tensor& base) {
  if (!base.requires_grad() || !at::GradMode::is_enabled()) return true;
  const auto& made_by = view.grad_fn_;
  if (!made_by || view.retains_grad_ || !view.hooks_.empty() || !made_by->tensor_pre_hooks().empty()) return false;
  return made_by->next_edge(0).function == torch::autograd::impl::try_get_grad_accumulator(base);
}

// A program that asked for 16-bit outputs by name gets its losses as Apex has them, in that type: of the built-in list of what
// runs in FP32 only mixes of types do so then, which LibTorch refuses. What only the program's own lists have stays.
std::map<std::string, CastPolicy> match_lists(const opt_levels::Settings& settings) {
  auto lists = settings.casts.match();
  if (!settings.cast_model_outputs || !is_low_precision(*settings.cast_model_outputs)) return lists;
  for (const auto& [name, policy] : opt_levels::CastLists::built_in().match()) {
    const auto listed = lists.find(name);
    const bool unchanged = listed != lists.end() && listed->second == policy;
    if (unchanged && policy == CastPolicy::float32) listed->second = CastPolicy::promote;
  }
  return lists;
}

bool has_overload(const std::string& name) { return name.find('.', name.find("::")) != std::string::npos; }

}  // namespace

std::shared_ptr<CastRules> CastRules::from(const opt_levels::Settings& settings, std::shared_ptr<const ParameterNames> names) {
  const auto& properties = settings.properties;
  const bool casts = properties.enabled && properties.patch_torch_functions;
  const bool match = properties.enabled && properties.cast_model_type && is_low_precision(*properties.cast_model_type);
  if (!casts && !match) return nullptr;
  const auto low_type = casts ? properties.patch_functions_type.value_or(at::kHalf) : *properties.cast_model_type;
  const std::shared_ptr<CastRules> rules(
      new CastRules(casts ? Mode::casts : Mode::match, low_type, settings.verbosity == 2, std::move(names)));
  rules->set_policies(casts ? settings.casts.casts() : match_lists(settings), settings.allow_banned);
  rules->keep_functions(settings.float32_functions);
  rules->kept_modules_ = settings.float32_modules;
  return rules;
}

CastRules::CastRules(Mode mode, c10::ScalarType low_type, bool prints_casts, std::shared_ptr<const ParameterNames> names)
    : mode_(mode), low_type_(low_type), prints_casts_(prints_casts), names_(std::move(names)) {}

void CastRules::set_policies(const std::map<std::string, CastPolicy>& lists, bool allow_banned) {
  // Names without an overload first, so that the more precise ones win.
  for (const bool precise : {false, true}) {
    for (const auto& [name, listed] : lists) {
      if (has_overload(name) != precise) continue;
      const auto policy = listed == CastPolicy::banned && allow_banned ? CastPolicy::float32 : listed;
      for (const auto* slot : slots_named(name)) {
        if (slot->index >= policies_.size()) policies_.resize(num_operator_slots(), CastPolicy::none);
        policies_[slot->index] = policy;
      }
    }
  }
}

void CastRules::keep_functions(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    for (const auto* slot : slots_named(name)) {
      if (slot->index >= kept_functions_.size()) kept_functions_.resize(num_operator_slots());
      kept_functions_[slot->index] = true;
    }
  }
}

bool CastRules::keeps_float32(const at::Tensor& tensor) const {
  return keeps_modules() && tensor.defined() && is_within(module_of(tensor, *names_), kept_modules_);
}

bool CastRules::is_parameter(const at::Tensor& tensor) const {
  // What never took part in autograd cannot have been a parameter that did; this answers for most tensors at once.
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!meta) return names_->has(tensor);
  if (meta->is_view_) return is_parameter(at::Tensor(tensor._base()));
  return is_leaf_parameter(tensor, *meta);
}

std::string CastRules::name_of(const at::Tensor& parameter) const {
  const std::string* name = names_->find(parameter);
  return name ? "'" + *name + "'" : shape_of(parameter);
}

bool CastRules::is_leaf_parameter(const at::Tensor& tensor, const torch::autograd::AutogradMeta& meta) const {
  return !meta.grad_fn_ && (meta.requires_grad_ || names_->has(tensor));
}

bool CastRules::may_be_weight(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta && tensor.scalar_type() == at::kFloat && (meta->is_view_ || !meta->grad_fn_);
}

at::Tensor CastRules::cast_weight(const at::Tensor& tensor, c10::ScalarType dtype, uint64_t forward, bool& hit) const {
  if (tensor.is_inference() || !tensor.has_storage() || tensor.is_nested()) return {};
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!meta->is_view_) return is_leaf_parameter(tensor, *meta) ? cache_.cast(tensor, dtype, forward, hit) : at::Tensor();
  const at::Tensor base(tensor._base());
  const bool stands_for_base = is_transpose(tensor, base) && is_transparent(*meta, base) && is_parameter(base);
  return stands_for_base ? cache_.cast(base, dtype, forward, hit).t() : at::Tensor();
}

void CastRules::release_threads() {
  released_threads_.store(true, std::memory_order_relaxed);
  cache_.clear();
}

}  // namespace apex::amp::detail
