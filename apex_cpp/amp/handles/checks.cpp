#include <apex_cpp/amp/handles/checks.h>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/handles/amped.h>
#include <apex_cpp/amp/handles/model.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>

#include <ATen/MemoryOverlap.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>

namespace apex::amp::detail {
namespace {

void check_float32(const char* kind, const std::string& name, const at::Tensor& tensor, const Session& session) {
  if (!tensor.defined()) return;
  // bfloat16 is the level's own 16-bit type at O4, O5 and O6. At other levels Apex accepts and casts it.
  const auto& properties = session.settings.properties;
  const bool bfloat16_level = properties.cast_model_type == at::kBFloat16 || properties.patch_functions_type == at::kBFloat16;
  const bool low = tensor.scalar_type() == at::kHalf || (bfloat16_level && tensor.scalar_type() == at::kBFloat16);
  TORCH_CHECK(!low || was_cast_by_amp(tensor), "amp::initialize found the ", kind, " '", name, "' in ", tensor.scalar_type(),
              ", expected float32. Pass the model in float32, without calling to(torch::k", tensor.scalar_type(),
              ") on it: amp::initialize casts it as the opt level says.");
}

// The hooks and buckets of a DistributedDataParallel belong to the parameter's dtype and memory at construction.
void check_not_wrapped(const std::string& name, const at::Tensor& param) {
  TORCH_CHECK(
      !grad_sync_of(param), "amp::initialize found the parameter '", name,
      "' in a DistributedDataParallel. Initialize first, then wrap: auto [net, opt] = amp::initialize(model, optimizer, …); "
      "auto ddp = DistributedDataParallel(net); to initialize again, destroy the DistributedDataParallel first.");
}

using NamedTensor = std::pair<std::string, at::Tensor>;

void check_one_layout(const NamedTensor& a, const NamedTensor& b) {
  TORCH_CHECK(at::get_overlap_status(a.second, b.second) != at::MemOverlapStatus::Partial, "amp::initialize found '", a.first,
              "' of shape ", a.second.sizes(), " and '", b.first, "' of shape ", b.second.sizes(),
              " in the same memory, with different layouts: the cast to 16 bits would untie them. Keep one parameter, and take "
              "the other from it in forward: torch::linear(x, encoder->weight.t()).");
}

std::string quoted(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

bool is_running_statistic(const std::string& name) {
  const auto last = name.substr(name.rfind('.') + 1);
  return last == "running_mean" || last == "running_var";
}

}  // namespace

void check_ties(const std::vector<torch::nn::Module*>& models, const Session& session) {
  const auto dtype = session.settings.properties.cast_model_type;
  if (!dtype || !is_low_precision(*dtype)) return;
  std::unordered_map<const c10::StorageImpl*, std::vector<NamedTensor>> in_memory;
  for (const auto* model : models) {
    for (const auto& each : tensors_of(*model)) {
      if (!has_shared_memory(each.second) || !each.second.is_floating_point()) continue;
      auto& others = in_memory[memory_of(each.second)];
      for (const auto& other : others) check_one_layout(other, each);
      others.push_back(each);
    }
  }
}

ViewsOfBefore::ViewsOfBefore(const std::vector<torch::nn::Module*>& models) {
  for (const auto* model : models) {
    for (const auto& each : tensors_of(*model)) tensors_.emplace_back(each, TensorVersion(each.second));
  }
}

// A view shares the version counter of its base. A tensor tied by `set_data`, such as a pretrained weight, has its own counter.
void ViewsOfBefore::warn_of_those_left(c10::ScalarType dtype) const {
  std::vector<std::string> names;
  for (const auto& [each, before] : tensors_) {
    const bool has_moved = !before.same_memory(each.second);
    const bool has_views = !each.second.unsafeGetTensorImpl()->version_counter().unique();
    if (has_moved && has_views && before.memory_is_alive()) names.push_back(each.first);
  }
  if (names.empty()) return;
  TORCH_WARN("amp::initialize has cast ", quoted(names), " to ", dtype,
             ", and something holds a view of the tensors from before the cast: a data member that the constructor made by "
             "view() or detach(), or the graph of an earlier forward pass. Training does not change this view. Take views of "
             "parameters and buffers in forward, not in the constructor; keep copies of values by clone().");
}

std::vector<std::string> low_precision_counters(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_buffers()) {
    const at::Tensor& buffer = item.value();
    const bool may_count = is_low_precision(buffer.scalar_type()) && buffer.numel() == 1 && !is_running_statistic(item.key());
    if (!may_count) continue;
    const double value = buffer.item<double>();
    if (std::isfinite(value) && value == std::floor(value)) names.push_back(item.key());
  }
  return names;
}

void warn_of_counters(const std::vector<std::string>& names, c10::ScalarType dtype) {
  if (names.empty()) return;
  TORCH_WARN(
      "amp::initialize has cast the buffers ", quoted(names), " to ", dtype,
      ". Each has one element, a whole number. A counter that grows by 1 stops at ", dtype == at::kHalf ? 2048 : 256,
      " there. Register a counter as an integer, torch::zeros({}, torch::kLong), which no level casts, or keep it in FP32 by "
      "its name: InitializeOptions().float32_modules({\"",
      names.front(), "\"}).");
}

void check_model(const torch::nn::Module& module, const Session& session) {
  for (const auto& item : module.named_parameters()) check_not_wrapped(item.key(), item.value());
  for (const auto& item : module.named_parameters()) check_float32("parameter", item.key(), item.value(), session);
  for (const auto& item : module.named_buffers()) check_float32("buffer", item.key(), item.value(), session);
}

void check_not_initialized(const torch::optim::Optimizer& optimizer) {
  TORCH_CHECK(!dynamic_cast<const AmpOptimizerBase*>(&optimizer),
              "amp::initialize was given an optimizer that it has returned before. An optimizer can be initialized only once; "
              "make a new one over the model's parameters.");
  TORCH_CHECK(!is_original(optimizer),
              "amp::initialize was given an optimizer whose parameters have moved to the handle that an earlier "
              "amp::initialize, or LARC, has returned for it. Make a new optimizer over the model's parameters.");
}

void check_optimizer(torch::optim::Optimizer& optimizer, const Session& session) {
  TORCH_CHECK(!(session.has_masters() && dynamic_cast<torch::optim::LBFGS*>(&optimizer)),
              "LBFGS cannot be used with master weights: it calls a closure that runs backward many times a step. Use O0, or "
              "another optimizer.");
  const auto* fused = dynamic_cast<const StepsMasters*>(&optimizer);
  TORCH_CHECK(!(fused && fused->keeps_masters_of(at::kBFloat16) && session.has_masters() &&
                session.settings.properties.cast_model_type == at::kHalf),
              "This opt level trains float16 parameters, and the optimizer's master_storage is for bfloat16 ones. "
              "Use O5, or leave master_storage float32.");
  check_one_group_each(optimizer.param_groups(), [&](const at::Tensor& param) { return session.name_of(param); });
  size_t params = 0, known = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& param : group.params()) {
      ++params;
      const bool in_model = session.parameter_names->has(param);
      known += in_model;
      const bool is_cast = in_model && session.settings.properties.cast_model_type && param.is_floating_point();
      const auto dtype = param.scalar_type();
      TORCH_CHECK_TYPE(
          is_cast || !param.requires_grad() || is_amp_float(dtype), "amp::initialize found the optimizer's parameter ",
          session.name_of(param), " in ", dtype, "; amp trains float32, float16 and bfloat16 parameters. ",
          param.is_complex() ? "Give it to a separate optimizer that is not passed to amp::initialize, and divide its "
                               "gradients by the loss scale before its step, which must be left out if they are not finite."
                             : "Convert it to float32 first, or give it to a separate optimizer that is not passed to "
                               "amp::initialize, and divide its gradients by the loss scale before its step, which must be "
                               "left out if they are not finite.");
    }
  }
  TORCH_CHECK(
      params == 0 || known > 0, "amp::initialize was given an optimizer over ", params,
      " parameters, none of which belongs to the models. Construct it from the parameters of the model that you pass "
      "in, Optimizer(model->parameters(), …). Tensors of no model, such as an image or a temperature: register them in a "
      "module that amp::initialize is given, or put them into a group of the model's optimizer. A scale_loss block gives the "
      "tensors of an optimizer that is left out gradients that carry the loss scale.");
}

void check_one_master_each(const std::vector<torch::optim::Optimizer*>& optimizers, const Session& session) {
  if (!session.has_masters()) return;
  std::unordered_map<const at::TensorImpl*, size_t> owners;
  std::unordered_map<const void*, size_t> owners_of_shared;  // by address, because tied parameters share one master
  for (size_t i = 0; i < optimizers.size(); ++i) {
    for (const auto& group : optimizers[i]->param_groups()) {
      for (const auto& param : group.params()) {
        size_t owner = owners.try_emplace(param.unsafeGetTensorImpl(), i).first->second;
        if (has_shared_memory(param)) owner = owners_of_shared.try_emplace(param.const_data_ptr(), owner).first->second;
        TORCH_CHECK(owner == i, "amp::initialize found the parameter ", session.name_of(param), " in optimizers ", owner,
                    " and ", i,
                    ", and two master weights of one parameter would overwrite each other. Give each parameter to one "
                    "optimizer and change its options between steps, call amp::initialize again for the second optimizer "
                    "before it trains, or use a level without master weights, such as O1 or O4.");
      }
    }
  }
}

void warn_of_float64(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    if (item.value().scalar_type() != at::kDouble) continue;
    TORCH_WARN("amp::initialize found the parameter '", item.key(),
               "' in Double, and amp computes in float32 and 16 bits. Convert the model and its data to float32 first, "
               "model->to(torch::kFloat) and x.to(torch::kFloat), or leave a model that needs float64 out of amp::initialize.");
    return;
  }
}

namespace {

bool is_in(ObjectBytes object, uintptr_t address) {
  return address - reinterpret_cast<uintptr_t>(object.begin) < object.size;  // an address below `begin` wraps around
}

/// Whether a word of `holder`, from offset `from` on, is an address inside `object` and `counts(offset)` is true. Reads bytes,
/// because the captures of a std::function cannot be accessed otherwise (design_notes.md).
template <class F>
bool any_address_in(ObjectBytes object, ObjectBytes holder, size_t from, const F& counts) {
  for (size_t offset = from; offset + sizeof(uintptr_t) <= holder.size; offset += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, holder.begin + offset, sizeof(word));
    if (is_in(object, word) && counts(offset)) return true;
  }
  return false;
}

/// Whether `copy` has an address inside `original` that it copied from the same offset of `original`, as a std::function with a
/// captured `this` has. Bytes that a copy does not write are indeterminate; comparing with the original excludes most of them.
bool took_over_address(ObjectBytes original, ObjectBytes copy) {
  return any_address_in(original, copy, 0, [&](size_t offset) {
    return std::memcmp(original.begin + offset, copy.begin + offset, sizeof(uintptr_t)) == 0;
  });
}

/// Reads only the std::function of a FunctionalImpl, which follows its base Module, because Module has uninitialized bytes.
bool holds_address_in(ObjectBytes original, const torch::nn::Module& module) {
  const auto* function = dynamic_cast<const torch::nn::FunctionalImpl*>(&module);
  return function &&
         any_address_in(original, bytes_of_object(*function), sizeof(torch::nn::Module), [](size_t) { return true; });
}

/// The name of the first tensor that the two modules do not share; empty if they share all.
std::string first_not_shared(const torch::nn::Module& original, const torch::nn::Module& copy) {
  const auto theirs = tensors_of(original), own = tensors_of(copy);
  const auto differs = [](const auto& a, const auto& b) { return a.first != b.first || !a.second.is_same(b.second); };
  for (size_t i = 0; i < std::min(theirs.size(), own.size()); ++i) {
    if (differs(theirs[i], own[i])) return theirs[i].first;
  }
  if (theirs.size() == own.size()) return "";
  return theirs.size() > own.size() ? theirs[own.size()].first : own[theirs.size()].first;
}

}  // namespace

void check_copy_shares(const torch::nn::Module& original, const torch::nn::Module& copy) {
  const std::string name = first_not_shared(original, copy);
  TORCH_CHECK(name.empty(), "amp has copied a model of class ", original.name(), ", and the copy does not share '", name,
              "' with it: the copy constructor of the class makes parameters or buffers of its own, which the optimizer would "
              "not train. Declare the class with AMP_MODULE in place of TORCH_MODULE, so that it is not copied (a "
              "std::shared_ptr<amp::Amped<NetImpl>> where there is no holder), or let its copy constructor copy the holders "
              "and tensors as they are.");
}

void warn_of_own_copy_or_destructor(const std::type_info& copied) {
  TORCH_WARN("amp::initialize has copied a model of class ", c10::demangle(copied.name()),
             ", which declares a destructor or a copy operation. A resource that the destructor frees by hand is freed twice, "
             "once for the model and once for its copy. Declare the class with AMP_MODULE in place of TORCH_MODULE, so that it "
             "is not copied, or leave the destructor to the members (std::unique_ptr, std::shared_ptr).");
}

void warn_of_derived_class(const torch::nn::Module& module, const std::type_info& known_as) {
  const std::string base = c10::demangle(known_as.name());
  TORCH_WARN("amp::initialize was given a model of class ", c10::demangle(typeid(module).name()), ", held as ", base,
             ". The handle passes forward on to it; its other members are those of ", base,
             ". Call them on the model itself, or pass the model by its own class.");
}

void warn_of_other_holders(const std::type_info& held_as) {
  const std::string name = c10::demangle(held_as.name());
  TORCH_WARN(
      "amp::initialize was given a ", name,
      " that something else holds as well: a module in which it is registered, or a copy of the holder. These share the "
      "weights, which are now 16-bit, but cast neither inputs nor outputs, and have data members of their own. Register the "
      "handle's module in the parent, parent->replace_module(name, model), make copies after amp::initialize, take the model "
      "by reference (Net&) where a function initializes it, or declare the class with AMP_MODULE in place of TORCH_MODULE.");
}

void warn_of_saving_originals() {
  TORCH_WARN(
      "amp::initialize does not copy a model that is held by a base class. Its own save() writes the weights in their present "
      "dtype, which is now 16-bit. Save and load through what amp::initialize returned: torch::save(net, path), "
      "torch::load(net, path).");
}

void warn_of_held_this(const torch::nn::Module& module, ObjectBytes original, ObjectBytes copy) {
  const auto children = module.modules(/*include_self=*/false);
  const bool held = took_over_address(original, copy) || std::any_of(children.begin(), children.end(), [&](const auto& child) {
                      return holds_address_in(original, *child);
                    });
  if (!held) return;
  TORCH_WARN("amp::initialize has copied a model of class ", module.name(),
             ", in which a function has captured the `this` of the original module: the function does not see data members "
             "that are written through the model or its handle from now on. Declare the class with AMP_MODULE in place of "
             "TORCH_MODULE, so that it is not copied; parameters, buffers and children are shared either way.");
}

}  // namespace apex::amp::detail
