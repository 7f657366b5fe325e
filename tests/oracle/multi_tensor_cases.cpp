#include "tests/oracle/multi_tensor_cases.h"

#include <ATen/Functions.h>

#include <functional>
#include <set>

#include "kernels/multi_tensor.h"
#include "tests/oracle/features.h"
#include "tests/oracle/verdict/compare.h"

namespace oracle {
namespace {

namespace kernels = apex::kernels;
constexpr double kPrefill = 7.0;

// One call: its entry in the case, fresh copies of the lists with the call's values injected, and the flag.
class Call {
 public:
  Call(const CaseFile& case_file, const Json& call, Report& report) : case_file_(case_file), call_(call), report_(report) {
    flag_ = at::full({1}, call.int_or("flag_before", 0), at::TensorOptions().dtype(at::kInt));
  }

  const Json& entry() const { return call_; }
  const at::Tensor& flag() const { return flag_; }
  Report& report() { return report_; }

  std::vector<at::Tensor> list(const std::string& argument) const {
    const std::string name = call_.at(argument).as_string();
    std::vector<at::Tensor> tensors;
    const Json& list = case_file_.json().at("lists").at(name);
    const at::ScalarType dtype = dtype_from_name(list.at("dtype"));
    for (const Json& tensor : list.at("tensors").items()) {
      tensors.push_back(case_file_.tensor(tensor.as_string()));
      const bool has_list_dtype = tensors.back().scalar_type() == dtype;
      if (!has_list_dtype) throw std::runtime_error(tensor.where() + ": the tensor is stored in another dtype than its list's");
    }
    for (const Json& value : call_.at("inject").items()) {
      if (value.at("list").as_string() != name) continue;
      tensors.at(static_cast<size_t>(value.at("tensor").as_int())).view(-1)[value.at("index").as_int()] =
          value.at("value").as_double();
    }
    return tensors;
  }

  std::vector<at::Tensor> outputs_like(const std::vector<at::Tensor>& inputs) const {
    const at::ScalarType dtype = dtype_from_name(call_.at("out_dtype"));
    std::vector<at::Tensor> outputs;
    for (const auto& input : inputs) outputs.push_back(at::full_like(input, kPrefill, input.options().dtype(dtype)));
    return outputs;
  }

  void check_flag() {
    compare_number(report_, "overflow flag", flag_.item<int>(), call_.at("expect").at("flag").as_double(), {});
  }

  void check_outputs(const std::vector<at::Tensor>& outputs, const Tolerance& tolerance) {
    check_flag();
    const Json& expect = call_.at("expect");
    const auto counts = expect.at("nonfinite_count").as_ints();
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto nonfinite = outputs[i].numel() - outputs[i].isfinite().sum().item<int64_t>();
      compare_number(report_, "non-finite values in output " + std::to_string(i), static_cast<double>(nonfinite),
                     static_cast<double>(counts.at(i)), {});
    }
    if (!expect.has("tensors")) return;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string name = expect.at("tensors").items().at(i).as_string();
      const auto expected = case_file_.expected(name, outputs[i].numel());
      if (!expected) throw std::runtime_error(expect.where() + ": '" + name + "' is not stored");
      compare_tensor(report_, name, outputs[i], *expected, tolerance);
    }
  }

 private:
  const CaseFile& case_file_;
  const Json& call_;
  Report& report_;
  at::Tensor flag_;
};

void play_scale(Call& call) {
  const std::vector<at::Tensor> in = call.list("src");
  const std::vector<at::Tensor> out = call.entry().bool_or("inplace", false) ? in : call.outputs_like(in);
  kernels::multi_tensor_scale(call.flag(), in, out, call.entry().at("scale").as_double());
  call.check_outputs(out, {});
}

// The bounds that the reference values come with. In float32, two products and their sum are rounded by 2^-24 = 6e-8 each. A
// sum whose terms cancel in part is smaller than they are. A float16 result may be rounded to the neighbouring number.
Tolerance axpby_tolerance(const Call& call) {
  Tolerance tolerance;
  if (dtype_from_name(call.entry().at("out_dtype")) == at::kFloat) {
    tolerance.rtol = 1e-6;
  } else {
    tolerance.spacings = 1;
  }
  return tolerance;
}

void play_axpby(Call& call) {
  const std::vector<at::Tensor> x = call.list("x");
  const std::vector<at::Tensor> y = call.list("y");
  const std::vector<at::Tensor> out = call.outputs_like(x);
  const auto check = static_cast<kernels::CheckArg>(call.entry().at("arg_to_check").as_int());
  kernels::multi_tensor_axpby(call.flag(), x, y, out, call.entry().at("a").as_double(), call.entry().at("b").as_double(),
                              check);
  call.check_outputs(out, axpby_tolerance(call));
}

// The bound is that which the reference values come with, for sums of squares in float32 as well: some hundred roundings of
// 2^-24. This library's norms are within 2.5 of them (kernels/multi_tensor.h).
void check_norms(Call& call, bool per_tensor, const at::Tensor& norm, const at::Tensor& norms) {
  Tolerance tolerance;
  tolerance.rtol = 1e-5;
  call.check_flag();
  const Json& expect = call.entry().at("expect");
  compare_number(call.report(), "norm", norm.item<double>(), expect.at("norm").as_double(), tolerance);
  if (!per_tensor) return;
  const auto& wanted = expect.at("per_tensor").items();
  compare_text(call.report(), "number of norms", std::to_string(norms.numel()), std::to_string(wanted.size()));
  for (int64_t i = 0; i < norms.numel() && i < static_cast<int64_t>(wanted.size()); ++i) {
    compare_number(call.report(), "norm of tensor " + std::to_string(i), norms[i].item<double>(),
                   wanted[static_cast<size_t>(i)].as_double(), tolerance);
  }
}

void play_l2norm(Call& call) {
  const bool per_tensor = call.entry().at("per_tensor").as_bool();
  const auto [norm, norms] = kernels::multi_tensor_l2norm(call.flag(), call.list("src"), per_tensor);
  check_norms(call, per_tensor, norm, norms);
}

void play_unscale_l2norm(Call& call) {
  const bool per_tensor = call.entry().at("per_tensor").as_bool();
  const at::Tensor inv_scale = at::full({1}, call.entry().at("inv_scale").as_double(), at::kFloat);
  const auto [norm, norms] = kernels::multi_tensor_unscale_l2norm(call.flag(), call.list("src"), inv_scale, per_tensor);
  check_norms(call, per_tensor, norm, norms);
}

struct Kernel {
  std::set<std::string> fields;   // what a call may hold beside id, fn, inject and expect
  std::set<std::string> expects;  // the expectations that it may have
  std::function<void(Call&)> play;
};

// Kernels by Apex's name without its prefix. A new kernel is one more entry.
const std::map<std::string, Kernel>& kernel_registry() {
  static const std::set<std::string> kOutputs = {"flag", "nonfinite_count", "tensors"};
  static const std::set<std::string> kNorms = {"flag", "norm", "per_tensor"};
  static const std::map<std::string, Kernel> kRegistry = {
      {"scale", {{"src", "out_dtype", "inplace", "scale", "flag_before"}, kOutputs, play_scale}},
      {"axpby", {{"x", "y", "out_dtype", "a", "b", "arg_to_check", "flag_before"}, kOutputs, play_axpby}},
      {"l2norm", {{"src", "per_tensor", "flag_before"}, kNorms, play_l2norm}},
      {"unscale_l2norm", {{"src", "per_tensor", "inv_scale", "flag_before"}, kNorms, play_unscale_l2norm}}};
  return kRegistry;
}

const Kernel& kernel_of(const Json& call) {
  const std::string fn = call.at("fn").as_string();
  const auto kernel = kernel_registry().find(fn);
  if (kernel == kernel_registry().end()) throw NeedsFeature("multi_tensor_" + fn);
  std::set<std::string> fields = {"id", "fn", "inject", "expect"};
  fields.insert(kernel->second.fields.begin(), kernel->second.fields.end());
  require_known(call, fields, "calls of multi_tensor_" + fn);
  require_known(call.at("expect"), kernel->second.expects, "what calls of multi_tensor_" + fn + " expect");
  return kernel->second;
}

}  // namespace

void play_multi_tensor_case(const CaseFile& case_file, Report& report) {
  play(report, case_file.name(), "multi_tensor", [&] {
    require_features(case_file.json());
    const auto& calls = case_file.json().at("calls").items();
    for (const Json& entry : calls) (void)kernel_of(entry);
    for (const Json& entry : calls) {
      report.at("call " + std::to_string(entry.at("id").as_int()) + " (" + entry.at("fn").as_string() + ")");
      Call call(case_file, entry, report);
      kernel_of(entry).play(call);
    }
    report.at("end");
    check_all_compared(report, case_file);
  });
}

}  // namespace oracle
