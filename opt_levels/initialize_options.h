#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "opt_levels/cast_lists.h"
#include "opt_levels/properties.h"

namespace apex::opt_levels {

namespace detail {
struct OptionFields;
/// Restricts a setter to `bool`: a string literal would convert to `true` otherwise.
template <class T>
using EnableIfBool = std::enable_if_t<std::is_same_v<T, bool>>;
}  // namespace detail

/// The keyword arguments of Apex's `amp.initialize`, and some more, as chained setters:
/// `InitializeOptions().loss_scale(128).num_losses(2)`.
///
/// The getter of an option that was not set returns `std::nullopt`. The value then comes from the level's YAML, or else from
/// the level's preset. Setting `std::nullopt` unsets an option. `resolve` checks values against the level and their range; a
/// setter only rejects values that it cannot store.
class InitializeOptions {
 public:
  /// If false, `initialize` returns models and optimizers unchanged, and checks no other option (INIT-03). Default true.
  template <class Bool, class = detail::EnableIfBool<Bool>>
  InitializeOptions& enabled(Bool value) {
    return set(enabled_, value);
  }
  InitializeOptions& enabled(std::nullopt_t) { return unset(enabled_); }
  const std::optional<bool>& enabled() const { return enabled_; }

  /// Type to which the model's floating-point parameters, buffers and inputs are cast: kHalf, kBFloat16 or kFloat. `false`
  /// leaves the model uncast at any level (PROP-10, PROP-11); the getter's inner optional is empty then. Errors: ValueError for
  /// `true`.
  InitializeOptions& cast_model_type(c10::ScalarType value) { return set(cast_model_type_, value); }
  template <class Bool, class = detail::EnableIfBool<Bool>>
  InitializeOptions& cast_model_type(Bool value) {
    return leave_model_alone(value);
  }
  InitializeOptions& cast_model_type(std::nullopt_t) { return unset(cast_model_type_); }
  const std::optional<std::optional<c10::ScalarType>>& cast_model_type() const { return cast_model_type_; }

  /// Whether functions cast their inputs. `true` is allowed only with O1 and O4 (PROP-12).
  template <class Bool, class = detail::EnableIfBool<Bool>>
  InitializeOptions& patch_torch_functions(Bool value) {
    return set(patch_torch_functions_, value);
  }
  InitializeOptions& patch_torch_functions(std::nullopt_t) { return unset(patch_torch_functions_); }
  const std::optional<bool>& patch_torch_functions() const { return patch_torch_functions_; }

  /// Whether affine batch norm stays in FP32 when the model is cast: a bool, or "True" or "False" (PROP-13, PROP-14). Errors:
  /// RuntimeError for another string.
  template <class Bool, class = detail::EnableIfBool<Bool>>
  InitializeOptions& keep_batchnorm_fp32(Bool value) {
    return set(keep_batchnorm_fp32_, value);
  }
  InitializeOptions& keep_batchnorm_fp32(const std::string& value);
  InitializeOptions& keep_batchnorm_fp32(const char* value) { return keep_batchnorm_fp32(std::string(value)); }
  InitializeOptions& keep_batchnorm_fp32(std::nullopt_t) { return unset(keep_batchnorm_fp32_); }
  const std::optional<bool>& keep_batchnorm_fp32() const { return keep_batchnorm_fp32_; }

  /// Whether the optimizer updates FP32 copies of 16-bit parameters. Not allowed with O1 and O4 (PROP-15).
  template <class Bool, class = detail::EnableIfBool<Bool>>
  InitializeOptions& master_weights(Bool value) {
    return set(master_weights_, value);
  }
  InitializeOptions& master_weights(std::nullopt_t) { return unset(master_weights_); }
  const std::optional<bool>& master_weights() const { return master_weights_; }

  /// A positive number, "dynamic", or a number as a string (PROP-16). Errors: ValueError for another string.
  InitializeOptions& loss_scale(const LossScale& value) { return set(loss_scale_, value); }
  InitializeOptions& loss_scale(std::nullopt_t) { return unset(loss_scale_); }
  const std::optional<LossScale>& loss_scale() const { return loss_scale_; }

  /// Type to which each model's floating-point outputs are cast: kHalf, kBFloat16 or kFloat (INIT-12). With a 16-bit type,
  /// losses at O2, O3, O5 and O6 run in the type of their arguments; otherwise in FP32.
  InitializeOptions& cast_model_outputs(c10::ScalarType value) { return set(cast_model_outputs_, value); }
  InitializeOptions& cast_model_outputs(std::nullopt_t) { return unset(cast_model_outputs_); }
  const std::optional<c10::ScalarType>& cast_model_outputs() const { return cast_model_outputs_; }

  /// Number of loss scalers, at least 1 (INIT-13). Default 1.
  InitializeOptions& num_losses(std::int64_t value) { return set(num_losses_, value); }
  InitializeOptions& num_losses(std::nullopt_t) { return unset(num_losses_); }
  const std::optional<std::int64_t>& num_losses() const { return num_losses_; }

  /// 0: silent; 1: prints properties and skipped steps; 2: prints every cast too (PRINT-*). Default 1.
  InitializeOptions& verbosity(std::int64_t value) { return set(verbosity_, value); }
  InitializeOptions& verbosity(std::nullopt_t) { return unset(verbosity_); }
  const std::optional<std::int64_t>& verbosity() const { return verbosity_; }

  /// Lower bound of a dynamic loss scale, positive. Default: none.
  InitializeOptions& min_loss_scale(double value) { return set(min_loss_scale_, value); }
  InitializeOptions& min_loss_scale(std::nullopt_t) { return unset(min_loss_scale_); }
  const std::optional<double>& min_loss_scale() const { return min_loss_scale_; }

  /// Upper bound of a dynamic loss scale, positive. Default 2^24.
  InitializeOptions& max_loss_scale(double value) { return set(max_loss_scale_, value); }
  InitializeOptions& max_loss_scale(std::nullopt_t) { return unset(max_loss_scale_); }
  const std::optional<double>& max_loss_scale() const { return max_loss_scale_; }

  /// If true, a step is skipped if its gradients hold Inf or NaN, at every level, and with a fixed loss scale (1 included) as
  /// well as with a dynamic one. Skipped steps are reported and counted as with a dynamic loss scale, but a fixed loss scale
  /// does not change. Costs one pass over the gradients and one read of a device flag for each `scale_loss` block. Default
  /// false: Inf and NaN get into the weights, as in Apex.
  template <class Bool, class = detail::EnableIfBool<Bool>>
  InitializeOptions& skip_nonfinite(Bool value) {
    return set(skip_nonfinite_, value);
  }
  InitializeOptions& skip_nonfinite(std::nullopt_t) { return unset(skip_nonfinite_); }
  const std::optional<bool>& skip_nonfinite() const { return skip_nonfinite_; }

  /// If true, functions that O1 bans for 16-bit inputs run in FP32 instead. Default false.
  template <class Bool, class = detail::EnableIfBool<Bool>>
  InitializeOptions& allow_banned(Bool value) {
    return set(allow_banned_, value);
  }
  InitializeOptions& allow_banned(std::nullopt_t) { return unset(allow_banned_); }
  const std::optional<bool>& allow_banned() const { return allow_banned_; }

  /// Whether matrix products and convolutions of FP32 tensors may run in TF32 on a GPU that has it: the range of FP32 with ten
  /// bits of mantissa. Applies to the whole process. Default: the process's setting stays.
  template <class Bool, class = detail::EnableIfBool<Bool>>
  InitializeOptions& allow_tf32(Bool value) {
    return set(allow_tf32_, value);
  }
  InitializeOptions& allow_tf32(std::nullopt_t) { return unset(allow_tf32_); }
  const std::optional<bool>& allow_tf32() const { return allow_tf32_; }

  /// How matrix products, convolutions, attention and recurrent layers compute on 16-bit CPU tensors, forward and backward. The
  /// names are "auto", "native" and "float32". Weights, activations and gradients stay 16-bit. Default: auto. Errors:
  /// ValueError for another string.
  InitializeOptions& cpu_16bit(Cpu16Bit value) { return set(cpu_16bit_, value); }
  InitializeOptions& cpu_16bit(const std::string& name);
  InitializeOptions& cpu_16bit(std::nullopt_t) { return unset(cpu_16bit_); }
  const std::optional<Cpu16Bit>& cpu_16bit() const { return cpu_16bit_; }

  /// The FP8 recipe of matrix products in a model that is cast to bfloat16: "none", "current", "delayed", "block128" or
  /// "mx". Default: the level's, which is current at O6 and none at the others. Errors: ValueError for another string.
  InitializeOptions& fp8(Float8Recipe value) { return set(fp8_, value); }
  InitializeOptions& fp8(const std::string& name);
  InitializeOptions& fp8(std::nullopt_t) { return unset(fp8_); }
  const std::optional<Float8Recipe>& fp8() const { return fp8_; }

  /// The format of gradients in FP8 products, "e4m3" or "e5m2"; activations and weights are e4m3. Without effect if `fp8` is
  /// none. Default: e5m2 with current and delayed, e4m3 with block128 and mx. Errors: ValueError for another string.
  InitializeOptions& fp8_gradients(Float8Format value) { return set(fp8_gradients_, value); }
  InitializeOptions& fp8_gradients(const std::string& name);
  InitializeOptions& fp8_gradients(std::nullopt_t) { return unset(fp8_gradients_); }
  const std::optional<Float8Format>& fp8_gradients() const { return fp8_gradients_; }

  /// Whether convolutions run in FP8 too, with one scale for each tensor, whatever the recipe. Without effect if `fp8` is none.
  /// Default: false.
  template <class Bool, class = detail::EnableIfBool<Bool>>
  InitializeOptions& fp8_convolutions(Bool value) {
    return set(fp8_convolutions_, value);
  }
  InitializeOptions& fp8_convolutions(std::nullopt_t) { return unset(fp8_convolutions_); }
  const std::optional<bool>& fp8_convolutions() const { return fp8_convolutions_; }

  /// Whether apex_cpp replaces the process's CPU allocator, to ask the Linux kernel for huge pages under each CPU tensor of 32
  /// MB or more. Holds for the whole process. Default: the environment variable APEX_CPP_HUGE_PAGES (`on` or `off`) decides; if
  /// it is not set, the allocator stays as it is.
  template <class Bool, class = detail::EnableIfBool<Bool>>
  InitializeOptions& huge_pages(Bool value) {
    return set(huge_pages_, value);
  }
  InitializeOptions& huge_pages(std::nullopt_t) { return unset(huge_pages_); }
  const std::optional<bool>& huge_pages() const { return huge_pages_; }

  /// Which operators are cast, and how. Default: `CastLists::built_in()`.
  InitializeOptions& casts(const CastLists& value) { return set(casts_, value); }
  InitializeOptions& casts(std::nullopt_t) { return unset(casts_); }
  const std::optional<CastLists>& casts() const { return casts_; }

  /// Paths of modules that run in FP32 at every level with all their submodules ("encoder.layers.0"). Their parameters and
  /// buffers stay FP32. Operators that use one of these parameters get FP32 arguments, so that their results are FP32.
  /// Operators without parameters are not affected; name them in `float32_functions`. Default: none.
  InitializeOptions& float32_modules(const std::vector<std::string>& value) { return set(float32_modules_, value); }
  InitializeOptions& float32_modules(std::nullopt_t) { return unset(float32_modules_); }
  const std::optional<std::vector<std::string>>& float32_modules() const { return float32_modules_; }

  /// Operators that get FP32 arguments at every level, regardless of the cast lists, and in a handle's forward too:
  /// "aten::exp", "aten::add.Tensor", or an operator of the program's own library. Default: none.
  InitializeOptions& float32_functions(const std::vector<std::string>& value) { return set(float32_functions_, value); }
  InitializeOptions& float32_functions(std::nullopt_t) { return unset(float32_functions_); }
  const std::optional<std::vector<std::string>>& float32_functions() const { return float32_functions_; }

  /// Paths of modules whose products stay in BF16 with all their submodules, where `fp8` makes products FP8 ("decoder.head"),
  /// and names of single parameters, as a model without layers has them.
  /// An empty list leaves no module out. Without effect if `fp8` is none. Default: the first and the last layer of each model,
  /// a layer being a module that has a weight of two or more dimensions.
  InitializeOptions& bfloat16_modules(const std::vector<std::string>& value) { return set(bfloat16_modules_, value); }
  InitializeOptions& bfloat16_modules(std::nullopt_t) { return unset(bfloat16_modules_); }
  const std::optional<std::vector<std::string>>& bfloat16_modules() const { return bfloat16_modules_; }

  /// Equal if the same options are set, to equal values.
  friend bool operator==(const InitializeOptions& a, const InitializeOptions& b);
  friend bool operator!=(const InitializeOptions& a, const InitializeOptions& b) { return !(a == b); }

 private:
  friend struct detail::OptionFields;

  template <class T, class Value>
  InitializeOptions& set(std::optional<T>& option, const Value& value) {
    option.emplace(value);
    return *this;
  }
  template <class T>
  InitializeOptions& unset(std::optional<T>& option) {
    option.reset();
    return *this;
  }
  InitializeOptions& leave_model_alone(bool value);

  std::optional<bool> enabled_;
  std::optional<std::optional<c10::ScalarType>> cast_model_type_;
  std::optional<bool> patch_torch_functions_;
  std::optional<bool> keep_batchnorm_fp32_;
  std::optional<bool> master_weights_;
  std::optional<LossScale> loss_scale_;
  std::optional<c10::ScalarType> cast_model_outputs_;
  std::optional<std::int64_t> num_losses_;
  std::optional<std::int64_t> verbosity_;
  std::optional<double> min_loss_scale_;
  std::optional<double> max_loss_scale_;
  std::optional<bool> skip_nonfinite_;
  std::optional<bool> allow_banned_;
  std::optional<bool> allow_tf32_;
  std::optional<Cpu16Bit> cpu_16bit_;
  std::optional<Float8Recipe> fp8_;
  std::optional<Float8Format> fp8_gradients_;
  std::optional<bool> fp8_convolutions_;
  std::optional<bool> huge_pages_;
  std::optional<CastLists> casts_;
  std::optional<std::vector<std::string>> float32_modules_;
  std::optional<std::vector<std::string>> float32_functions_;
  std::optional<std::vector<std::string>> bfloat16_modules_;
};

}  // namespace apex::opt_levels
