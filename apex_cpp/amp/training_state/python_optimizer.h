#pragma once

#include <apex_cpp/amp/checkpoint/content.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace apex::amp::detail {

struct OwnClass;

/// The state of an optimizer of torch.optim, as its `state_dict()` has it. Parameters are named by position over all groups.
struct PythonOptimizer {
  struct Group {
    std::map<std::string, c10::IValue> options;
    std::vector<int64_t> params;
  };
  struct State {
    std::optional<int64_t> step;
    std::map<std::string, at::Tensor> tensors;
  };

  std::string class_name;           // "AdamW"
  std::vector<std::string> params;  // names in the model
  std::vector<Group> groups;
  std::map<int64_t, State> states;
};

/// Errors: RuntimeError for a class, an option or a parameter that Python cannot have.
PythonOptimizer to_python(const OptimizerContent& content);

/// `here`, the content of an optimizer, with options and states of `python`. `weights`: the float32 values of the model's
/// tensors by name, which become the masters. Errors: c10::Error with the value that does not fit, and the remedy.
OptimizerContent from_python(const PythonOptimizer& python, const std::map<std::string, at::Tensor>& weights,
                             OptimizerContent here);

// What both directions need.

/// The options of a group in an optimizer's archive.
const ArchiveTree& options_of_group(const ArchiveTree& archive, size_t group);
/// Errors: RuntimeError for an option with which the optimizer computes something that Python's class does not.
void check_fixed_options(const OwnClass& own, const ArchiveTree& options, size_t group);
/// The name of Python's class. Errors: RuntimeError if the groups belong to two.
std::string python_class_of(const OwnClass& own, const ArchiveTree& archive, size_t groups);
/// The positions in order, without repeated ones: LibTorch may list a tied parameter twice.
std::vector<int64_t> once_each(const std::vector<int64_t>& positions);

}  // namespace apex::amp::detail
