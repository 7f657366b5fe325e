#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <vector>

namespace apex::amp::detail {

/// An option that the groups of a class of torch.optim have.
struct PythonOption {
  enum class Type { number, flag, betas };

  const char* name;
  Type type = Type::number;
  /// The value of an optimizer that lacks the option. Unless `any_is_neutral`, such an optimizer accepts no other.
  c10::IValue neutral = 0.0;
  bool any_is_neutral = false;
  bool may_be_negative = false;
};

/// A tensor of a parameter's state.
struct PythonTensor {
  const char* name;
  /// It may be missing if this option of the group is false or 0. Empty: it is always there.
  const char* needed_with = "";
  bool may_be_missing = false;
};

/// What a training state holds for a class of torch.optim.
struct PythonClass {
  const char* name;
  std::vector<PythonOption> options;
  std::vector<PythonTensor> tensors;
  bool counts_steps = true;
  /// Parameters have a state before their first step.
  bool has_state_from_start = false;

  const PythonOption* find_option(const std::string& option) const;
  const PythonTensor* find_tensor(const std::string& tensor) const;
  /// "lr, momentum, …": for messages.
  std::string names_of_options() const;
  std::string names_of_tensors() const;
};

/// Null for a class that training states do not support.
const PythonClass* find_python_class(const std::string& name);

/// A class of optimizers here, and what it is in Python.
struct OwnClass {
  enum class Steps { in_states, by_group, none };

  const char* name;
  const char* python;
  Steps steps = Steps::in_states;
  /// The class is AdamW with `adam_w_mode`, and `python` without.
  bool has_adam_w_mode = false;
  /// Options with which it computes what Python's class computes.
  std::vector<std::pair<const char*, bool>> fixed = {};
};

/// Errors: RuntimeError with the supported classes for another one.
const OwnClass& own_class_of(const std::string& name);

}  // namespace apex::amp::detail
