#include <apex_cpp/amp/handles/amped.h>

#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/handles/model.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/torch_compat/autograd.h>
#include <apex_cpp/torch_compat/private_members.h>

#include <ATen/Operators.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace apex::amp::detail {

bool training_flag(const torch::nn::Module& module) noexcept {
  return torch_compat::training_flag(const_cast<torch::nn::Module&>(module));  // is only read
}

void set_training_flag(torch::nn::Module& module, bool on) { torch_compat::training_flag(module) = on; }

// modules() lists parents before children, so a child keeps its own flag.
void copy_training_flags(const torch::nn::Module& from, torch::nn::Module& to) {
  to.train(from.is_training());
  const auto sources = from.modules(/*include_self=*/false);
  const auto copies = to.modules(/*include_self=*/false);
  for (size_t i = 0; i < sources.size() && i < copies.size(); ++i) copies[i]->train(sources[i]->is_training());
}

namespace {

using Storages = std::unordered_set<const c10::StorageImpl*>;

Storages storages_of(const torch::nn::Module& module, const std::function<bool(const at::Tensor&)>& is_taken) {
  Storages storages;
  for (const auto& [name, tensor] : tensors_of(module)) {
    if (tensor.has_storage() && is_taken(tensor)) storages.insert(tensor.storage().unsafeGetStorageImpl());
  }
  return storages;
}

void widen_entries(c10::ivalue::Object& archived, const Storages& weights) {
  for (size_t slot = 0; slot < archived.slots().size(); ++slot) {
    const c10::IValue& entry = archived.getSlot(slot);
    if (entry.isObject()) {
      widen_entries(entry.toObjectRef(), weights);
    } else if (entry.isTensor() && entry.toTensor().defined() && entry.toTensor().has_storage() &&
               weights.count(entry.toTensor().storage().unsafeGetStorageImpl())) {
      archived.setSlot(slot, widened(entry.toTensor()));
    }
  }
}

/// Calls `f(archive, path, key, tensor, is_buffer)` for each parameter and buffer, where `archive` is its module's archive. If
/// the file lacks a module, throws with `must_exist`, and skips the module otherwise.
template <class F>
void for_each_entry(const torch::nn::Module& module, torch::serialize::InputArchive& archive, bool must_exist, const F& f,
                    const std::string& path = "") {
  for (const auto& item : module.named_parameters(false)) f(archive, path, item.key(), item.value(), false);
  for (const auto& item : module.named_buffers(false)) f(archive, path, item.key(), item.value(), true);
  for (const auto& item : module.named_children()) {
    if (!item.value()->is_serializable()) continue;
    torch::serialize::InputArchive child;
    const bool exists = archive.try_read(item.key(), child);
    TORCH_CHECK(exists || !must_exist, "The checkpoint has no module '", path, item.key(),
                "'. It was saved from another model.");
    if (exists) for_each_entry(*item.value(), child, must_exist, f, path + item.key() + ".");
  }
}

using Dtypes = ReplacedValues::Dtypes;

/// The dtypes of the parameters and buffers in a file, for those that the file has under the same names.
Dtypes dtypes_in(torch::serialize::InputArchive& archive, const torch::nn::Module& module) {
  Dtypes dtypes;
  for_each_entry(module, archive, /*must_exist=*/false,
                 [&](auto& part, const std::string&, const std::string& key, const at::Tensor& target, bool is_buffer) {
                   at::Tensor value;
                   if (target.defined() && part.try_read(key, value, is_buffer)) {
                     dtypes[target.unsafeGetTensorImpl()] = value.scalar_type();
                   }
                 });
  return dtypes;
}

/// Errors: c10::Error with the name of an entry that a file of `Module::save` would have.
void check_has_entries(torch::serialize::InputArchive& archive, const torch::nn::Module& module) {
  for_each_entry(module, archive, /*must_exist=*/true,
                 [](auto& part, const std::string& path, const std::string& key, const at::Tensor& target, bool is_buffer) {
                   at::Tensor value;
                   TORCH_CHECK(!target.defined() || part.try_read(key, value, is_buffer), "The checkpoint has no entry '", path,
                               key, "'. It was saved from another model.");
                 });
}

int64_t writes_to(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

/// A copy in another dtype, in new memory that may also be written outside of inference mode.
at::Tensor converted(const at::Tensor& tensor, c10::ScalarType dtype) {
  const c10::InferenceMode off(false);
  const c10::AutoGradMode no_grad(false);
  return tensor.detach().to(dtype);
}

// While a module reads its entries; other calls of `set_` are the program's own.
thread_local bool loads_values = false;

// LibTorch loads an entry by `parameter.set_(entry)`, which takes over the entry's memory whatever the dtypes: a 16-bit weight,
// also one that the program has converted, would become the bits of an FP32 value. This kernel copies values instead. It
// applies to every load: of a part of a model, of a copy, and of a model held by a base class.
at::Tensor& set_to_entry(c10::DispatchKeySet keys, at::Tensor& tensor, const at::Tensor& entry) {
  using Set = at::_ops::set__source_Tensor;
  const bool same = !tensor.defined() || !entry.defined() || tensor.scalar_type() == entry.scalar_type();
  if (same || !(loads_values || was_cast_by_amp(tensor))) return Set::redispatch(keys & kBelowCastKey, tensor, entry);
  const c10::impl::ExcludeDispatchKeyGuard off(kOffInside);
  const auto session = session_that_cast(tensor);
  const bool has_name = session && session->parameter_names->has(tensor);
  TORCH_CHECK(entry.sizes() == tensor.sizes(), "The checkpoint's entry for ", has_name ? session->name_of(tensor) : "a tensor",
              " has shape ", entry.sizes(), ", the model's has ", tensor.sizes(), ". It was saved from another model.");
  remove_internal_overlap(tensor);
  const Sessions sessions = sessions_that_know({tensor}, session);
  load_values(sessions, [&] { assign(tensor, entry, sessions); });
  return tensor;
}

const AtenKernels& reading_kernels() {
  static const AtenKernels kernels(kCastKey,
                                   [](torch::Library& aten) { aten.impl("set_.source_Tensor", TORCH_FN(set_to_entry)); });
  return kernels;
}

[[maybe_unused]] const AtenKernels& reading_at_load = reading_kernels();

/// Enables the kernel above on this thread, which may have no casts, and disables all casts.
class ReadsValues {
 public:
  ReadsValues() {
    c10::impl::tls_set_dispatch_key_included(kCastKey, true);
    c10::impl::tls_set_dispatch_key_excluded(kCastKey, false);
    loads_values = true;
  }
  ~ReadsValues() {
    before_.restore();
    loads_values = loaded_values_;
  }
  ReadsValues(const ReadsValues&) = delete;
  ReadsValues& operator=(const ReadsValues&) = delete;

 private:
  SavedCasts before_;
  disable_casts casts_off_;
  bool loaded_values_ = loads_values;
};

bool is_cast(const torch::nn::Module& module) {
  const auto tensors = tensors_of(module);
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& item) {
    return is_low_precision(item.second.scalar_type()) && was_cast_by_amp(item.second);
  });
}

}  // namespace

/// One parameter or buffer whose values are replaced.
class ReplacedValues::Replaced {
 public:
  Replaced(std::string name, at::Tensor tensor)
      : name_(std::move(name)),
        tensor_(std::move(tensor)),
        before_(tensor_.detach()),
        accumulator_(torch_compat::existing_grad_accumulator(tensor_)) {}

  /// If it fails, `put_back` undoes what it has done.
  void replace(c10::ScalarType dtype) {
    if (dtype != tensor_.scalar_type()) tensor_.set_data(converted(tensor_, dtype));
    data_ = tensor_.detach();
    writes_ = writes_to(tensor_);
  }

  /// The value that was written since; undefined if none was.
  at::Tensor written() const {
    const bool is_same = tensor_.has_storage() && tensor_.storage().is_alias_of(data_.storage());
    return is_same && writes_to(tensor_) == writes_ ? at::Tensor() : tensor_.detach();
  }
  void check_shape(const at::Tensor& value) const {
    TORCH_CHECK(value.sizes() == before_.sizes(), "The checkpoint's '", name_, "' has shape ", value.sizes(),
                ", the model's has ", before_.sizes(), ".");
  }
  void put_back() {
    tensor_.set_data(before_);
    // The accumulator carries the hooks of a DistributedDataParallel. A change of dtype or memory drops it.
    if (accumulator_) torch_compat::set_grad_accumulator(tensor_, accumulator_);
  }
  const at::Tensor& tensor() const { return tensor_; }

 private:
  std::string name_;
  at::Tensor tensor_, before_, data_;
  torch_compat::NodePtr accumulator_;  // the owner of its hooks keeps it alive
  int64_t writes_ = 0;
};

ReplacedValues::ReplacedValues(const torch::nn::Module& module, const Dtypes& dtypes) {
  std::unordered_set<const at::TensorImpl*> seen;
  for (auto& [name, tensor] : tensors_of(module)) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) values_.emplace_back(name, tensor);
  }
  try {
    for (auto& value : values_) {
      const at::Tensor& tensor = value.tensor();
      const auto own = is_low_precision(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
      const auto in_file = dtypes.find(tensor.unsafeGetTensorImpl());
      value.replace(in_file == dtypes.end() ? own : in_file->second);
    }
  } catch (...) {  // no destructor runs for an object that its constructor did not finish
    put_back();
    throw;
  }
}

ReplacedValues::~ReplacedValues() { put_back(); }

void ReplacedValues::put_back() {
  for (auto& value : values_) value.put_back();
}

void ReplacedValues::keep(const std::shared_ptr<Session>& session) {
  std::vector<at::Tensor> tensors, written;
  for (const auto& value : values_) {
    tensors.push_back(value.tensor());
    written.push_back(value.written());
    if (written.back().defined()) value.check_shape(written.back());
  }
  put_back();
  const Sessions sessions = sessions_that_know(tensors, session);  // parts may be models of other calls
  load_values(sessions, [&] {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (!written[i].defined()) continue;
      remove_internal_overlap(tensors[i]);
      assign(tensors[i], written[i], sessions);
    }
  });
  values_.clear();
}

void remember_clone(const torch::nn::Module& original, const torch::nn::Module& clone) {
  const auto theirs = tensors_of(original), own = tensors_of(clone);
  const auto* patched = dynamic_cast<const CastsForward*>(&original);
  if (const auto rules = patched ? patched->amp_casts().rules : nullptr) {
    for (size_t i = 0; i < std::min(theirs.size(), own.size()); ++i) rules->add_clone(theirs[i].second, own[i].second);
  }
  for (const auto& [name, tensor] : theirs) {
    if (const auto session = session_that_cast(tensor)) return remember_casts(clone, session);
  }
}

void save_float32(const torch::nn::Module& module, torch::serialize::OutputArchive& archive,
                  const std::function<void()>& own_save) {
  own_save();
  widen_entries(*torch_compat::module_in(archive)._ivalue(), storages_of(module, [](const at::Tensor&) { return true; }));
}

void load_any_dtype(const torch::nn::Module& module, torch::serialize::InputArchive& archive,
                    const std::shared_ptr<Session>& session, const std::function<void()>& own_load) {
  ReplacedValues values(module, dtypes_in(archive, module));
  try {
    own_load();
  } catch (const c10::Error&) {
    check_has_entries(archive, module);
    throw;
  }
  values.keep(session);
}

void save_module(const torch::nn::Module& module, torch::serialize::OutputArchive& archive) {
  const auto* own = dynamic_cast<const CastsForward*>(&module);
  const bool has_own_way = own && own->amp_casts().session;  // a part of a model that amp has cast has none
  if (has_own_way || !is_cast(module)) {
    module.save(archive);
  } else {
    module.save(archive);  // beside tensors that amp has cast, a part may have others, which a load takes as they are
    widen_entries(*torch_compat::module_in(archive)._ivalue(), storages_of(module, was_cast_by_amp));
  }
}

void load_module(torch::nn::Module& module, torch::serialize::InputArchive& archive) {
  const ReadsValues values;
  module.load(archive);
}

}  // namespace apex::amp::detail
