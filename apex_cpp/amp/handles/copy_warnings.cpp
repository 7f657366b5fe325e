#include <apex_cpp/amp/handles/amped.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/nn/modules/container/functional.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace apex::amp::detail {
namespace {

uintptr_t word_at(const char* address) {
  uintptr_t word = 0;
  std::memcpy(&word, address, sizeof(word));
  return word;
}

bool is_in(ObjectBytes object, uintptr_t address) {
  return address - reinterpret_cast<uintptr_t>(object.begin) < object.size;  // unsigned: below is far above
}

/// Whether the copy took an address in the original over from it, as a std::function with a lambda's `this` does. Objects are
/// read as bytes, since what a std::function holds has no other access; those that a copy leaves alone are whatever was there.
bool took_over_address(ObjectBytes original, ObjectBytes copy) {
  for (size_t offset = 0; offset + sizeof(uintptr_t) <= copy.size; offset += sizeof(uintptr_t)) {
    const uintptr_t word = word_at(copy.begin + offset);
    if (is_in(original, word) && word == word_at(original.begin + offset)) return true;
  }
  return false;
}

/// FunctionalImpl is its Module and, last, the std::function: without the part before, what it does not initialise is not read.
bool holds_address_in(ObjectBytes original, const torch::nn::Module& module) {
  const auto* function = dynamic_cast<const torch::nn::FunctionalImpl*>(&module);
  if (!function) return false;
  const ObjectBytes object = bytes_of_object(*function);
  for (size_t offset = sizeof(torch::nn::Module); offset + sizeof(uintptr_t) <= object.size; offset += sizeof(uintptr_t)) {
    if (is_in(original, word_at(object.begin + offset))) return true;
  }
  return false;
}

}  // namespace

void warn_of_derived_class(const torch::nn::Module& module, const std::type_info& known_as) {
  const std::string base = c10::demangle(known_as.name());
  TORCH_WARN("amp::initialize was given a model of class ", c10::demangle(typeid(module).name()), ", held as ", base,
             ". The handle passes forward on to it; its other members are those of ", base,
             ". Call them on the model itself, or pass the model by its own class.");
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
