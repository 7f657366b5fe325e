#include "tests/oracle/session/initialize_args.h"

#include <functional>
#include <map>

#include "tests/oracle/reading/case_file.h"
#include "tests/oracle/verdict/report.h"

namespace oracle {
namespace {

namespace amp = apex::amp;
using Options = amp::InitializeOptions;
using ArgumentSetter = std::function<void(Options&, const Json&)>;

amp::LossScale loss_scale(const Json& value) {
  return value.is_number() ? amp::LossScale(value.as_double()) : amp::LossScale(value.as_string());
}

const std::map<std::string, ArgumentSetter>& setters() {
  static const std::map<std::string, ArgumentSetter> kSetters = {
      {"enabled", [](Options& o, const Json& v) { o.enabled(v.as_bool()); }},
      {"cast_model_type",
       [](Options& o, const Json& v) {
         v.is_string() ? o.cast_model_type(dtype_from_name(v)) : o.cast_model_type(v.as_bool());
       }},
      {"patch_torch_functions", [](Options& o, const Json& v) { o.patch_torch_functions(v.as_bool()); }},
      {"keep_batchnorm_fp32",
       [](Options& o, const Json& v) {
         v.is_string() ? o.keep_batchnorm_fp32(v.as_string()) : o.keep_batchnorm_fp32(v.as_bool());
       }},
      {"master_weights", [](Options& o, const Json& v) { o.master_weights(v.as_bool()); }},
      {"loss_scale", [](Options& o, const Json& v) { o.loss_scale(loss_scale(v)); }},
      {"cast_model_outputs", [](Options& o, const Json& v) { o.cast_model_outputs(dtype_from_name(v)); }},
      {"num_losses", [](Options& o, const Json& v) { o.num_losses(v.as_int()); }},
      {"verbosity", [](Options& o, const Json& v) { o.verbosity(v.as_int()); }},
      {"min_loss_scale", [](Options& o, const Json& v) { o.min_loss_scale(v.as_double()); }},
      {"max_loss_scale", [](Options& o, const Json& v) { o.max_loss_scale(v.as_double()); }}};
  return kSetters;
}

}  // namespace

amp::OptLevel opt_level_arg(const Json& args) { return amp::OptLevel(args.string_or("opt_level", "O1")); }

Options initialize_options(const Json& args) {
  Options options;
  options.verbosity(0);  // a silent replay; the levels' messages have tests of their own
  for (const auto& [name, value] : args.members()) {
    if (name == "opt_level" || value.is_null()) continue;
    auto setter = setters().find(name);
    if (setter == setters().end()) throw NeedsFeature("argument '" + name + "' of initialize");
    setter->second(options, value);
  }
  return options;
}

}  // namespace oracle
