#pragma once

#include "opt_levels/initialize_options.h"

namespace apex::opt_levels::detail {

/// The one list of the options, by the names they have in YAML; first those that change properties, in the order in which
/// Apex applies them (INIT-08).
struct OptionFields {
  /// Calls `visit(name, left, right)` for every option of two sets, with its two `std::optional`s.
  template <class Left, class Right, class Visit>
  static void visit_pairs(Left& a, Right& b, Visit&& visit) {
    visit("enabled", a.enabled_, b.enabled_);
    visit("cast_model_type", a.cast_model_type_, b.cast_model_type_);
    visit("patch_torch_functions", a.patch_torch_functions_, b.patch_torch_functions_);
    visit("keep_batchnorm_fp32", a.keep_batchnorm_fp32_, b.keep_batchnorm_fp32_);
    visit("master_weights", a.master_weights_, b.master_weights_);
    visit("loss_scale", a.loss_scale_, b.loss_scale_);
    visit("cast_model_outputs", a.cast_model_outputs_, b.cast_model_outputs_);
    visit("num_losses", a.num_losses_, b.num_losses_);
    visit("verbosity", a.verbosity_, b.verbosity_);
    visit("min_loss_scale", a.min_loss_scale_, b.min_loss_scale_);
    visit("max_loss_scale", a.max_loss_scale_, b.max_loss_scale_);
    visit("skip_nonfinite", a.skip_nonfinite_, b.skip_nonfinite_);
    visit("allow_banned", a.allow_banned_, b.allow_banned_);
    visit("allow_tf32", a.allow_tf32_, b.allow_tf32_);
    visit("cpu_16bit", a.cpu_16bit_, b.cpu_16bit_);
    visit("casts", a.casts_, b.casts_);
    visit("float32_modules", a.float32_modules_, b.float32_modules_);
    visit("float32_functions", a.float32_functions_, b.float32_functions_);
  }

  template <class Options, class Visit>
  static void visit(Options& options, Visit&& visit) {
    visit_pairs(options, options, [&](const char* name, auto& option, auto&) { visit(name, option); });
  }
};

}  // namespace apex::opt_levels::detail
