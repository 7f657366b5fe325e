#include "opt_levels/resolve.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <string>

#include "opt_levels/detail/presets.h"
#include "opt_levels/detail/values.h"

namespace apex::opt_levels {
namespace {

using detail::OptionFields;
using detail::value_text;

InitializeOptions merged(const InitializeOptions& first, InitializeOptions second) {
  OptionFields::visit_pairs(second, first, [](const char*, auto& to, const auto& from) {
    if (from) to = from;
  });
  return second;
}

bool is_model_type(c10::ScalarType type) {
  return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16 || type == c10::ScalarType::Float;
}

class Resolver {
 public:
  Resolver(const OptLevel& level, const InitializeOptions& options)
      : level_(level), options_(options), effective_(merged(options, level.overrides())) {}

  Settings settings() {
    Settings settings;
    settings.verbosity = effective_.verbosity().value_or(settings.verbosity);
    if (!effective_.enabled().value_or(true)) return settings;
    settings.properties = level_.preset();
    patches_functions_ = settings.properties.patch_torch_functions;
    set_bounds(settings);
    override_properties(settings.properties);
    set_rest(settings);
    set_fp8(settings);
    return settings;
  }

 private:
  // The option as messages show it: `loss_scale=0.0`, after its place if it came from YAML.
  template <class T>
  std::string given(const char* name, const T& value) const {
    const std::string text = std::string(name) + "=" + value_text(value);
    const std::string place = from_options(name) ? "" : level_.place_of(name);
    return place.empty() ? text : place + ": " + text;
  }

  bool from_options(const std::string& name) const {
    bool found = false;
    OptionFields::visit(options_, [&](const char* option, const auto& value) { found |= name == option && value; });
    return found;
  }

  void set_bounds(Settings& settings) const {
    settings.min_loss_scale = effective_.min_loss_scale();
    settings.max_loss_scale = effective_.max_loss_scale().value_or(settings.max_loss_scale);
    if (settings.min_loss_scale) check_scale("min_loss_scale", *settings.min_loss_scale);
    check_scale("max_loss_scale", settings.max_loss_scale);
    TORCH_CHECK_VALUE(settings.min_loss_scale.value_or(0) <= settings.max_loss_scale,
                      given("min_loss_scale", settings.min_loss_scale.value_or(0)), " is above ",
                      given("max_loss_scale", settings.max_loss_scale), ". The lower bound may not exceed the upper one.");
  }

  void override_properties(Properties& properties) const {
    override_cast_model_type(properties);
    override_patch_torch_functions(properties);
    override_keep_batchnorm_fp32(properties);
    override_master_weights(properties);
    if (const auto& scale = effective_.loss_scale()) {  // PROP-16
      if (!scale->dynamic) check_scale("loss_scale", scale->value);
      properties.loss_scale = *scale;
    }
  }

  void override_cast_model_type(Properties& properties) const {
    const auto& option = effective_.cast_model_type();
    if (!option) return;
    const auto& type = *option;
    TORCH_CHECK(!patches_functions_ || !type || *type == c10::ScalarType::Float, given("cast_model_type", type),
                " is not allowed with ", level_.name(),
                ", which keeps the model's weights in FP32 and casts the inputs of functions. ", kCastingLevels);  // PROP-10
    if (type) check_type("cast_model_type", *type);
    properties.cast_model_type = type;
  }

  void override_patch_torch_functions(Properties& properties) const {
    const auto& patch = effective_.patch_torch_functions();
    if (!patch) return;
    TORCH_CHECK(!*patch || patches_functions_, given("patch_torch_functions", *patch), " is not allowed with ", level_.name(),
                ". Functions are cast by O1 (O4 in bfloat16) alone: choose that level.");  // PROP-12
    properties.patch_torch_functions = *patch;
  }

  void override_keep_batchnorm_fp32(Properties& properties) const {
    const auto& keep = effective_.keep_batchnorm_fp32();
    if (!keep) return;
    TORCH_CHECK(
        !patches_functions_, given("keep_batchnorm_fp32", *keep), " is not allowed with ", level_.name(),
        ", whose batch norms have FP32 weights and statistics already. Leave the option out, or use O2 (O5) or O3.");  // PROP-13
    properties.keep_batchnorm_fp32 = keep;
  }

  void override_master_weights(Properties& properties) const {
    const auto& masters = effective_.master_weights();
    if (!masters) return;
    TORCH_CHECK(!patches_functions_, given("master_weights", *masters), " is not allowed with ", level_.name(),
                ", whose weights are FP32 already. ", kCastingLevels);  // PROP-15
    properties.master_weights = masters;
  }

  void set_rest(Settings& settings) const {
    settings.cast_model_outputs = effective_.cast_model_outputs();
    if (settings.cast_model_outputs) check_type("cast_model_outputs", *settings.cast_model_outputs);
    settings.num_losses = effective_.num_losses().value_or(settings.num_losses);
    TORCH_CHECK_VALUE(settings.num_losses >= 1, given("num_losses", settings.num_losses),
                      " is not allowed: there is one loss scaler per loss. Give 1 or more.");
    TORCH_CHECK_VALUE(settings.verbosity >= 0, given("verbosity", settings.verbosity),
                      " is not allowed. Give 0 (silent), 1 or 2.");
    settings.skip_nonfinite = effective_.skip_nonfinite().value_or(settings.skip_nonfinite);
    settings.allow_banned = effective_.allow_banned().value_or(settings.allow_banned);
    settings.allow_tf32 = effective_.allow_tf32();
    settings.cpu_16bit = effective_.cpu_16bit().value_or(settings.cpu_16bit);
    settings.huge_pages = effective_.huge_pages();
    if (effective_.casts()) settings.casts = *effective_.casts();
    settings.float32_modules = effective_.float32_modules().value_or(settings.float32_modules);
    settings.float32_functions = effective_.float32_functions().value_or(settings.float32_functions);
  }

  void set_fp8(Settings& settings) const {
    settings.fp8 = effective_.fp8().value_or(detail::preset(level_.name()).fp8);
    const auto& type = settings.properties.cast_model_type;
    TORCH_CHECK(settings.fp8 == Float8Recipe::none || type == c10::ScalarType::BFloat16, given("fp8", settings.fp8),
                " is not allowed with ", given("cast_model_type", type),
                ": only products of a model in bfloat16 run in FP8. Use O6, or O5 with fp8, or give cast_model_type bfloat16; "
                "fp8 none switches FP8 off.");
    settings.fp8_gradients = effective_.fp8_gradients().value_or(default_gradients(settings.fp8));
    settings.fp8_convolutions = effective_.fp8_convolutions().value_or(settings.fp8_convolutions);
    settings.bfloat16_modules = effective_.bfloat16_modules();
  }

  // One scale for a whole tensor needs e5m2's exponents; blocks have a scale each.
  static Float8Format default_gradients(Float8Recipe fp8) {
    const bool has_blocks = fp8 == Float8Recipe::block128 || fp8 == Float8Recipe::mx;
    return has_blocks ? Float8Format::e4m3 : Float8Format::e5m2;
  }

  void check_type(const char* name, c10::ScalarType type) const {
    TORCH_CHECK_VALUE(is_model_type(type), given(name, type), " is not allowed. Give float16, bfloat16 or float32.");
  }

  void check_scale(const char* name, double scale) const {
    TORCH_CHECK_VALUE(is_usable_scale(scale), given(name, scale),
                      " is not allowed. Give a positive finite number that float32 holds, from 1.2e-38 to 3.4e38.");
  }

  static constexpr const char* kCastingLevels = "Leave the option out, or use O2 or O3 (O5 in bfloat16), which cast the model.";

  const OptLevel& level_;
  const InitializeOptions& options_;
  InitializeOptions effective_;
  bool patches_functions_ = false;  // true at O1 and O4; Apex's rules for O1 apply to both
};

}  // namespace

bool is_usable_scale(double scale) { return std::isnormal(static_cast<float>(scale)) && scale > 0; }

Settings resolve(const OptLevel& level, const InitializeOptions& options) { return Resolver(level, options).settings(); }

}  // namespace apex::opt_levels
