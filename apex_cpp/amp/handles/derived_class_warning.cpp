#include <apex_cpp/amp/handles/amped.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

namespace apex::amp::detail {

void warn_of_derived_class(const torch::nn::Module& module, const std::type_info& known_as) {
  const std::string base = c10::demangle(known_as.name());
  TORCH_WARN("amp::initialize was given a model of class ", c10::demangle(typeid(module).name()), ", held as ", base,
             ". The handle passes forward on to it; its other members are those of ", base,
             ". Call them on the model itself, or pass the model by its own class.");
}

}  // namespace apex::amp::detail
