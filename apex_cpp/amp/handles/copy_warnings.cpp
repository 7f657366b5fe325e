#include <apex_cpp/amp/handles/amped.h>
#include <apex_cpp/amp/handles/patch_model.h>
#include <apex_cpp/amp/tensors/model_tensors.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/nn/modules/container/functional.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace apex::amp::detail {
namespace {

bool is_in(ObjectBytes object, uintptr_t address) {
  return address - reinterpret_cast<uintptr_t>(object.begin) < object.size;  // unsigned: below is far above
}

/// Whether a word of `holder`, from offset `from` on, is an address in `object` that `counts` by its offset. Objects are read
/// as bytes, since what a std::function holds has no other access.
template <class F>
bool any_address_in(ObjectBytes object, ObjectBytes holder, size_t from, const F& counts) {
  for (size_t offset = from; offset + sizeof(uintptr_t) <= holder.size; offset += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, holder.begin + offset, sizeof(word));
    if (is_in(object, word) && counts(offset)) return true;
  }
  return false;
}

/// Whether the copy took an address in the original over from it, as a std::function with a lambda's `this` does. Bytes that a
/// copy leaves alone are whatever was there.
bool took_over_address(ObjectBytes original, ObjectBytes copy) {
  return any_address_in(original, copy, 0, [&](size_t offset) {
    return std::memcmp(original.begin + offset, copy.begin + offset, sizeof(uintptr_t)) == 0;
  });
}

/// FunctionalImpl is its Module and, last, the std::function: without the part before, what it does not initialise is not read.
bool holds_address_in(ObjectBytes original, const torch::nn::Module& module) {
  const auto* function = dynamic_cast<const torch::nn::FunctionalImpl*>(&module);
  return function &&
         any_address_in(original, bytes_of_object(*function), sizeof(torch::nn::Module), [](size_t) { return true; });
}

/// The name of the first tensor in which the two differ; empty if they have the same ones.
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
      " that something else holds as well: a module that has it registered, or a copy of the holder. What these hold "
      "shares the weights, now of 16 bits, but casts neither inputs nor outputs, and has data members of its own. Let a "
      "parent have the handle's module, parent->replace_module(name, model), make copies after amp::initialize, take the "
      "model by reference (Net&) where a function initializes it, or declare the class with AMP_MODULE in place of "
      "TORCH_MODULE.");
}

void warn_of_saving_originals() {
  TORCH_WARN(
      "amp::initialize does not copy a model that is held by a base class. Its own save() writes its weights as they stand, "
      "now of 16 bits. Save and load through what amp::initialize returned: torch::save(net, path), torch::load(net, path).");
}

void warn_of_held_this(const torch::nn::Module& module, ObjectBytes original, ObjectBytes copy) {
  const auto children = module.modules(/*include_self=*/false);
  const bool held = took_over_address(original, copy) || std::any_of(children.begin(), children.end(), [&](const auto& child) {
                      return holds_address_in(original, *child);
                    });
  if (!held) return;
  TORCH_WARN(
      "amp::initialize has copied a model of class ", module.name(),
      ", in which a function holds the `this` of the module before: data members that are written through the model or its "
      "handle from now on are not those that the function reads. Declare the class with AMP_MODULE in place of "
      "TORCH_MODULE, so that it is not copied; parameters, buffers and children are shared either way.");
}

}  // namespace apex::amp::detail
