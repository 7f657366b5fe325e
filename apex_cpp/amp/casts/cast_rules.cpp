#include <apex_cpp/amp/casts/cast_rules.h>

#include <ATen/core/grad_mode.h>

#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/torch_compat/autograd.h>

#include <algorithm>
#include <utility>

namespace apex::amp::detail {

bool WeightCache::Entry::holds_for(const at::Tensor& tensor, uint64_t in_forward) const {
  if (!trace.matches(tensor) || !place.is_of(tensor)) return false;
  const bool is_of_this_forward = in_forward != 0 && forward == in_forward;
  if (!at::GradMode::is_enabled()) return is_of_this_forward;
  return tensor.requires_grad() == requires_grad && (kept || is_of_this_forward);
}

bool& weight_cache_is_off() {
  thread_local bool instance = false;
  return instance;
}

void WeightCache::keep(const at::Tensor& weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.set(weight, Kept());
}

WeightCache::Entry* WeightCache::in_dtype(Entries* entries, c10::ScalarType dtype) {
  if (!entries) return nullptr;
  const auto found =
      std::find_if(entries->begin(), entries->end(), [&](const Entry& entry) { return entry.cast.scalar_type() == dtype; });
  return found == entries->end() ? nullptr : &*found;
}

at::Tensor WeightCache::find(const at::Tensor& weight, c10::ScalarType dtype, uint64_t forward) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry* const entry = in_dtype(entries_.find(weight), dtype);
  if (!entry || !entry->holds_for(weight, forward)) return {};
  if (forward != 0 && entry->forward != forward) {
    entry->cast.data().copy_(weight.data());
    entry->forward = forward;
  }
  return entry->cast;
}

at::Tensor WeightCache::cast(const at::Tensor& weight, c10::ScalarType dtype, uint64_t forward, bool& hit,
                             c10::function_ref<bool()> is_named) {
  at::Tensor cast = find(weight, dtype, forward);
  hit = cast.defined();
  if (hit) return cast;
  cast = weight.to(dtype);
  Entry entry{TensorVersion(weight), Place(weight), cast.requires_grad(), false, forward, cast};
  const std::lock_guard<std::mutex> lock(mutex_);
  entry.kept = kept_.has(weight);
  if (!entry.kept && (forward == 0 || !is_named())) return cast;
  has_unkept_ |= !entry.kept;
  Entries& entries = entries_.at(weight);
  if (Entry* const earlier = in_dtype(&entries, dtype)) {
    *earlier = std::move(entry);
  } else {
    entries.push_back(std::move(entry));
  }
  return cast;
}

void WeightCache::clear() {
  WeakTensorMap<Entries> dropped;  // freed after the lock is released: freeing tensors may run other code
  const std::lock_guard<std::mutex> lock(mutex_);
  std::swap(dropped, entries_);
}

void WeightCache::end_forward() {
  if (!at::GradMode::is_enabled()) return clear();
  std::vector<Entries> dropped;  // freed after the lock is released, as in `clear`
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!std::exchange(has_unkept_, false)) return;
  std::vector<at::Tensor> weights;
  entries_.for_each([&](const at::Tensor& weight, const Entries& entries) {
    if (std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return !entry.kept; })) weights.push_back(weight);
  });
  for (const at::Tensor& weight : weights) {
    dropped.push_back(std::move(*entries_.find(weight)));
    entries_.erase(weight);
  }
}

size_t WeightCache::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

namespace {

bool is_transpose(const at::Tensor& tensor, const at::Tensor& base) {
  return tensor.dim() == 2 && base.dim() == 2 && tensor.size(0) == base.size(1) && tensor.size(1) == base.size(0) &&
         tensor.stride(0) == base.stride(1) && tensor.stride(1) == base.stride(0);
}

// Whether gradients pass from the view to its base as from any transpose: false if the view was made without gradients, or has
// hooks.
bool is_transparent(const torch::autograd::AutogradMeta& view, const at::Tensor& base) {
  if (!base.requires_grad() || !at::GradMode::is_enabled()) return true;
  return torch_compat::passes_gradients_to(view, base);
}

// If a program asks for 16-bit outputs, its losses run in 16 bits, as in Apex. The built-in FP32 list then casts only mixes of
// types, which LibTorch refuses. Entries of the program's own lists stay.
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

// The slots of an operator in a level's lists. LibTorch 2.15 lacks two operators of the built-in lists.
std::vector<OperatorSlot*> slots_listed(const std::string& name) {
  const auto& lists = opt_levels::CastLists::built_in();
  return lists.casts().count(name) + lists.match().count(name) > 0 ? built_in_slots(name) : slots_named(name);
}

// Registers the kernels of all operators in the built-in lists, once in the process and before any thread casts: LibTorch's
// dispatcher is not made for a registration while another thread calls the operator.
void register_built_in_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    const auto& lists = opt_levels::CastLists::built_in();
    for (const auto* list : {&lists.casts(), &lists.match()}) {
      for (const auto& [name, policy] : *list) built_in_slots(name);
    }
  });
}

bool has_overload(const std::string& name) { return name.find('.', name.find("::")) != std::string::npos; }

// The policies by the slots' indices.
std::vector<CastPolicy> table_of(const std::map<std::string, CastPolicy>& lists, bool allow_banned) {
  std::vector<CastPolicy> table;
  // Names without an overload come first, so that more precise names win.
  for (const bool precise : {false, true}) {
    for (const auto& [name, listed] : lists) {
      if (has_overload(name) != precise) continue;
      const auto policy = listed == CastPolicy::banned && allow_banned ? CastPolicy::float32 : listed;
      for (const auto* slot : slots_listed(name)) {
        if (slot->index >= table.size()) table.resize(num_operator_slots(), CastPolicy::none);
        table[slot->index] = policy;
      }
    }
  }
  return table;
}

}  // namespace

std::shared_ptr<CastRules> CastRules::from(const opt_levels::Settings& settings, std::shared_ptr<const ParameterNames> names) {
  const auto& properties = settings.properties;
  const bool casts = properties.enabled && properties.patch_torch_functions;
  const bool match = properties.enabled && properties.cast_model_type && is_low_precision(*properties.cast_model_type);
  if (!casts && !match) return nullptr;
  register_built_in_kernels();
  const auto low_type = casts ? properties.patch_functions_type.value_or(at::kHalf) : *properties.cast_model_type;
  const std::shared_ptr<CastRules> rules(
      new CastRules(casts ? Mode::casts : Mode::match, low_type, settings.verbosity == 2, std::move(names)));
  rules->policies_ = table_of(casts ? settings.casts.casts() : match_lists(settings), settings.allow_banned);
  if (casts) rules->policies_for_mixes_ = table_of(opt_levels::CastLists::built_in().match(), /*allow_banned=*/true);
  rules->keep_functions(settings.float32_functions);
  rules->kept_modules_ = settings.float32_modules;
  rules->float8_ = {settings.fp8, settings.fp8_gradients};
  rules->rounds_convolutions_ = settings.fp8_convolutions;
  rules->bfloat16_modules_ = settings.bfloat16_modules.value_or(std::vector<std::string>());
  return rules;
}

CastRules::CastRules(Mode mode, c10::ScalarType low_type, bool prints_casts, std::shared_ptr<const ParameterNames> names)
    : mode_(mode), low_type_(low_type), prints_casts_(prints_casts), names_(std::move(names)) {}

void CastRules::keep_functions(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    for (const auto* slot : slots_named(name)) {
      if (slot->index >= kept_functions_.size()) kept_functions_.resize(num_operator_slots());
      kept_functions_[slot->index] = true;
    }
  }
}

bool CastRules::keeps_float32(const at::Tensor& tensor) const {
  if (!keeps_modules() || !tensor.defined()) return false;
  const std::string* name = find_name(tensor);
  if (!name) name = find_clone(tensor);
  return name && is_within(*name, kept_modules_);
}

const std::string* CastRules::find_clone(const at::Tensor& tensor) const {
  if (!has_clones_.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard<std::mutex> lock(clones_mutex_);
  return name_of_parameter(tensor, clones_);  // stays where it is while the tensor lives
}

void CastRules::add_clone(const at::Tensor& original, const at::Tensor& clone) {
  const std::string* name = find_name(original);
  if (!name) name = find_clone(original);
  if (!name) return;
  const std::lock_guard<std::mutex> lock(clones_mutex_);
  clones_.add(clone, *name);
  has_clones_.store(true, std::memory_order_release);
}

const std::string* CastRules::find_name(const at::Tensor& tensor) const { return name_of_parameter(tensor, *names_); }

Float8Rounding CastRules::float8(const std::string* weight) const {
  Float8Rounding rounding = float8_;
  if (weight && float8_history_) rounding.delays = float8_history_->of(*weight);
  return rounding;
}

bool CastRules::is_parameter(const at::Tensor& tensor) const {
  // A tensor that autograd does not know was never a trained parameter. This test settles most tensors.
  const auto* meta = torch_compat::autograd_meta(tensor);
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
  const auto* meta = torch_compat::autograd_meta(tensor);
  return meta && tensor.scalar_type() == at::kFloat && (meta->is_view_ || !meta->grad_fn_);
}

at::Tensor CastRules::cast_weight(const at::Tensor& tensor, c10::ScalarType dtype, uint64_t forward, bool& hit) const {
  if (weight_cache_is_off() || tensor.is_inference() || !tensor.has_storage() || tensor.is_nested()) return {};
  const auto* meta = torch_compat::autograd_meta(tensor);
  const auto is_named = [&] { return names_->has(tensor) || find_clone(tensor); };
  if (!meta->is_view_) {
    return is_leaf_parameter(tensor, *meta) ? cache_.cast(tensor, dtype, forward, hit, is_named) : at::Tensor();
  }
  const at::Tensor base(tensor._base());
  const bool stands_for_base = is_transpose(tensor, base) && is_transparent(*meta, base) && names_->has(base);
  return stands_for_base ? cache_.cast(base, dtype, forward, hit, [] { return true; }).t() : at::Tensor();
}

void CastRules::release_threads() {
  released_threads_.store(true, std::memory_order_relaxed);
  cache_.clear();
}

}  // namespace apex::amp::detail
