#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/oracle/verdict/report.h"

// The operators of the table of O1 casts as a C++ program calls them.
namespace oracle {

// A floating tensor that a call takes: values between 0.1 and 0.9, or ones and minus ones; each tensor of a call has its own,
// or else those of the first, so that a comparison sees by how much they were rounded.
struct CastInput {
  std::vector<int64_t> sizes;
  bool signs = false;
  bool like_first = false;
};

inline const CastInput kMatrix{{3, 4}};
inline const CastInput kVector{{6}};
inline const std::vector<CastInput> kOne{kMatrix};
inline const std::vector<CastInput> kTwo{kMatrix, kMatrix};

struct CastCall {
  using Tensors = std::vector<at::Tensor>;

  std::vector<CastInput> inputs;
  std::function<at::Tensor(Tensors&)> run;
  // Whether gradients are compared: of what writes in place, or has none, they are not.
  bool differentiable = true;
};

// By namespace, operator and form as the table has them: "torch.acos", "torch.add (tensor, number)".
using CastCalls = std::map<std::string, CastCall>;

std::string cast_call_name(const std::string& place, const std::string& op, const std::string& form);

const CastCalls& cast_calls();

void add_functional_calls(CastCalls& calls);
void add_loss_calls(CastCalls& calls);
void add_pointwise_calls(CastCalls& calls);
void add_arithmetic_calls(CastCalls& calls);
void add_product_calls(CastCalls& calls);
void add_torch_calls(CastCalls& calls);

// Adds a function that torch has as a function and as a method of tensors.
using CastRun = std::function<at::Tensor(CastCall::Tensors&)>;
void add_both(CastCalls& calls, const std::string& op, const std::vector<CastInput>& inputs, const CastRun& function,
              const CastRun& method, const std::string& form = "");

// Modules of the table by name: the result of `forward` for an input of this dtype, with FP32 weights, and the gradients'
// dtypes.
struct ModuleOutcome {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> parameters;
};
ModuleOutcome run_cast_module(const std::string& name, at::ScalarType input);

// Where this library is meant to differ from the recording, as the repair file has it.
struct CastDifference {
  // What reaches the operator instead.
  enum class Receives { as_recorded, what_is_passed, float32, promoted, self_type };
  Receives receives = Receives::as_recorded;
  bool no_such_call = false;  // C++ has no such operator
};
CastDifference difference_of(const std::string& call, Report& report);
// The dtypes that a module returns instead; empty: as recorded.
std::vector<std::string> module_difference(const std::string& module, const std::string& input, Report& report);

}  // namespace oracle
