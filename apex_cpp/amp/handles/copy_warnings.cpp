#include <apex_cpp/amp/handles/amped.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/nn/modules/container/functional.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace apex::amp::detail {
namespace {

/// Whether a word of `object` is an address in `range`. Objects are read as bytes: what a std::function holds has no other
/// access.
bool points_into(ObjectBytes range, ObjectBytes object) {
  const auto begin = reinterpret_cast<uintptr_t>(range.begin);
  for (size_t offset = 0; offset + sizeof(uintptr_t) <= object.size; offset += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, object.begin + offset, sizeof(word));
    if (word >= begin && word - begin < range.size) return true;
  }
  return false;
}

bool is_function_that_holds(const torch::nn::Module& module, ObjectBytes object) {
  const auto* function = dynamic_cast<const torch::nn::FunctionalImpl*>(&module);
  return function && points_into(object, bytes_of_object(*function));
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
  const bool held = points_into(original, copy) || std::any_of(children.begin(), children.end(), [&](const auto& child) {
                      return is_function_that_holds(*child, original);
                    });
  if (!held) return;
  TORCH_WARN(
      "amp::initialize has copied a model of class ", module.name(),
      ", in which a function holds the `this` of the module before: data members that are written through the model or its "
      "handle from now on are not those that the function reads. Declare the class with AMP_MODULE in place of "
      "TORCH_MODULE, so that it is not copied; parameters, buffers and children are shared either way.");
}

}  // namespace apex::amp::detail
