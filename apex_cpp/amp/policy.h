#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "opt_levels/opt_level.h"

namespace apex::amp {

/// TensorFlow's mixed-precision policy names, as opt levels: `amp::initialize(model, optimizer, amp::Policy("mixed_float16"))`.
/// Keras: `tf.keras.mixed_precision.Policy`.
///
/// | name             | computes in | variables in | level                                                            |
/// |------------------|-------------|--------------|------------------------------------------------------------------|
/// | "float32"        | float32     | float32      | O0                                                               |
/// | "mixed_float16"  | float16     | float32      | O1, with dynamic loss scale (Keras: LossScaleOptimizer)          |
/// | "mixed_bfloat16" | bfloat16    | float32      | O4                                                               |
/// | "float16"        | float16     | float16      | O3                                                               |
/// | "bfloat16"       | bfloat16    | bfloat16     | O3 with `cast_model_type` bfloat16: the whole model, no masters  |
class Policy {
 public:
  /// Errors: ValueError for an unknown name; the message lists the names.
  /* implicit */ Policy(const std::string& name);
  /* implicit */ Policy(const char* name) : Policy(std::string(name)) {}

  const std::string& name() const { return name_; }
  c10::ScalarType compute_dtype() const { return compute_dtype_; }
  c10::ScalarType variable_dtype() const { return variable_dtype_; }
  const opt_levels::OptLevel& level() const { return level_; }
  /* implicit */ operator const opt_levels::OptLevel&() const { return level_; }

  friend bool operator==(const Policy& a, const Policy& b) { return a.name_ == b.name_; }
  friend bool operator!=(const Policy& a, const Policy& b) { return !(a == b); }

 private:
  std::string name_;
  c10::ScalarType compute_dtype_;
  c10::ScalarType variable_dtype_;
  opt_levels::OptLevel level_;
};

/// Sets the process-wide policy, for programs that pass `amp::global_policy()` to `amp::initialize`. Any thread may call it.
void set_global_policy(const Policy& policy);
/// The policy set last; "float32" by default. Callable from any thread.
Policy global_policy();

}  // namespace apex::amp
