#include "tests/oracle/session/wraps.h"

#include "tests/oracle/session/optimizers.h"
#include "tests/oracle/session/session.h"

namespace oracle {
namespace {

namespace fp16_utils = apex::fp16_utils;

template <class Options>
using WrapSetters = std::map<std::string, std::function<void(Options&, const Json&)>>;

// Null members count as absent.
template <class Options>
Options read_options(const std::string& of, const Json& args, const WrapSetters<Options>& setters) {
  Options options;
  for (const auto& [name, value] : args.members()) {
    if (value.is_null()) continue;
    const auto setter = setters.find(name);
    if (setter == setters.end()) throw NeedsFeature("argument '" + name + "' of " + of);
    setter->second(options, value);
  }
  return options;
}

void wrap_in_larc(OptimizerSlot& slot, const Json& args) {
  using O = apex::parallel::LARCOptions;
  const O options = read_options<O>("LARC", args,
                                    {{"trust_coefficient", [](O& o, const Json& v) { o.trust_coefficient(v.as_double()); }},
                                     {"clip", [](O& o, const Json& v) { o.clip(v.as_bool()); }},
                                     {"eps", [](O& o, const Json& v) { o.eps(v.as_double()); }}});
  slot.optimizer = optimizer_type(slot.type).in_larc(*slot.optimizer, options);
}

fp16_utils::DynamicLossArgs dynamic_loss_args(const Json& args) {
  using A = fp16_utils::DynamicLossArgs;
  return read_options<A>("dynamic_loss_args", args,
                         {{"init_scale", [](A& a, const Json& v) { a.init_scale(v.as_double()); }},
                          {"scale_factor", [](A& a, const Json& v) { a.scale_factor(v.as_double()); }},
                          {"scale_window", [](A& a, const Json& v) { a.scale_window(v.as_int()); }},
                          {"min_loss_scale", [](A& a, const Json& v) { a.min_loss_scale(v.as_double()); }},
                          {"max_loss_scale", [](A& a, const Json& v) { a.max_loss_scale(v.as_double()); }}});
}

void wrap_in_fp16_optimizer(OptimizerSlot& slot, const Json& args) {
  using O = fp16_utils::FP16_OptimizerOptions;
  O options = read_options<O>("FP16_Optimizer", args,
                              {{"static_loss_scale", [](O& o, const Json& v) { o.static_loss_scale(v.as_double()); }},
                               {"dynamic_loss_scale", [](O& o, const Json& v) { o.dynamic_loss_scale(v.as_bool()); }},
                               {"dynamic_loss_args", [](O& o, const Json& v) { o.dynamic_loss_args(dynamic_loss_args(v)); }},
                               {"verbose", [](O&, const Json&) {}}});
  slot.fp16 = std::make_unique<fp16_utils::FP16_Optimizer>(*slot.optimizer, options.verbose(false));
}

}  // namespace

const std::map<std::string, std::function<void(OptimizerSlot&, const Json&)>>& wrap_registry() {
  static const std::map<std::string, std::function<void(OptimizerSlot&, const Json&)>> kRegistry = {
      {"LARC", wrap_in_larc}, {"FP16_Optimizer", wrap_in_fp16_optimizer}};
  return kRegistry;
}

void wrap_optimizer(OptimizerSlot& slot, const Json& wrap) {
  static const Json kNoArguments = Json::parse("{}", "no arguments");
  const auto found = wrap_registry().find(wrap.at("type").as_string());
  if (found == wrap_registry().end()) throw NeedsFeature(wrap.at("type").as_string());
  const Json* args = wrap.find("args");
  found->second(slot, args && !args->is_null() ? *args : kNoArguments);
}

}  // namespace oracle
