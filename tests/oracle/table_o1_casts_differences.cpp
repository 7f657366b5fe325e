// Where this library is meant to differ from what was recorded from Apex, each with the reason. What it does instead is
// checked in the same way.
#include <c10/core/ScalarType.h>

#include "tests/oracle/table_o1_casts_calls.h"

namespace oracle {
namespace {

using Receives = CastDifference::Receives;

const char* const kOneOperator = "C++ has one operator for Python's patched and unpatched names; it is treated as listed";
const char* const kAugmented =
    "Python binds the name to a new tensor; C++'s operator writes into the tensor and follows its type, as add_ does (O1-21)";
const char* const kReflectedDivision = "Python takes the reciprocal, which is listed; C++ divides (O1-22)";
const char* const kNoSuchOperator = "C++ has no operator **=; pow_ has rows of its own";

const std::map<std::string, CastDifference>& differences() {
  static const std::map<std::string, CastDifference> kDifferences = {
      {"torch.softmax", {Receives::float32, kOneOperator}},
      {"torch.log_softmax", {Receives::float32, kOneOperator}},
      {"torch.nn.functional.bilinear", {Receives::promoted, kOneOperator}},
      {"Tensor.__iadd__ (tensor, tensor)", {Receives::self_type, kAugmented}},
      {"Tensor.__isub__ (tensor, tensor)", {Receives::self_type, kAugmented}},
      {"Tensor.__imul__ (tensor, tensor)", {Receives::self_type, kAugmented}},
      {"Tensor.__idiv__ (tensor, tensor)", {Receives::self_type, kAugmented}},
      {"Tensor.__itruediv__ (tensor, tensor)", {Receives::self_type, kAugmented}},
      {"Tensor.__rdiv__ (tensor, tensor)", {Receives::promoted, kReflectedDivision}},
      {"Tensor.__rtruediv__ (tensor, tensor)", {Receives::promoted, kReflectedDivision}},
      {"Tensor.__rdiv__ (tensor, number)", {Receives::what_is_passed, kReflectedDivision}},
      {"Tensor.__rtruediv__ (tensor, number)", {Receives::what_is_passed, kReflectedDivision}},
      {"Tensor.__ipow__ (tensor, number)", {Receives::as_recorded, kNoSuchOperator, true}},
      {"Tensor.__ipow__ (tensor, tensor)", {Receives::as_recorded, kNoSuchOperator, true}},
  };
  return kDifferences;
}

using Types = std::vector<at::ScalarType>;

// Modules, by name and type of the input. Python's recurrent modules refuse a half input themselves, and its plain RNN passes
// by what Apex patches; its PReLU and Bilinear hold the functions from before they were patched. Here an operator is an
// operator.
const std::map<std::string, Types>& module_differences() {
  static const std::map<std::string, Types> kDifferences = {
      {"LSTM half", {at::kHalf, at::kHalf, at::kHalf}},
      {"GRU half", {at::kHalf, at::kHalf}},
      {"RNN(tanh) half", {at::kHalf, at::kHalf}},
      {"RNN(tanh) float", {at::kHalf, at::kHalf}},
      {"RNN(relu) half", {at::kHalf, at::kHalf}},
      {"RNN(relu) float", {at::kHalf, at::kHalf}},
      {"PReLU half", {at::kHalf}},
      {"PReLU float", {at::kHalf}},
      {"Bilinear half", {at::kFloat}},
  };
  return kDifferences;
}

}  // namespace

CastDifference difference_of(const std::string& call) {
  const auto found = differences().find(call);
  return found == differences().end() ? CastDifference() : found->second;
}

const std::vector<at::ScalarType>* module_difference(const std::string& module, const std::string& input) {
  const auto found = module_differences().find(module + " " + input);
  return found == module_differences().end() ? nullptr : &found->second;
}

}  // namespace oracle
