// Runs the recorded multi_tensor cases through Apex's own names (K-SCALE, K-AXPBY, K-L2, K-UL2).
#include <filesystem>

#include "support.h"
#include "tests/oracle/reading/case_file.h"
#include "tests/oracle/verdict/compare.h"
#include "tests/oracle/verdict/report.h"

namespace {

using namespace amp_C_test;
using oracle::CaseFile;
using oracle::Json;

// One recorded call: its lists with the recorded values injected, and the expected results.
class Call {
 public:
  Call(const CaseFile& file, const Json& entry, oracle::Report& report)
      : file_(file), entry_(entry), report_(report), flag_(flag(static_cast<int>(entry.int_or("flag_before", 0)))) {}

  void play() {
    const std::string fn = entry_.at("fn").as_string();
    if (fn == "scale") return scale();
    if (fn == "axpby") return axpby();
    if (fn == "l2norm" || fn == "unscale_l2norm") return norms(fn == "unscale_l2norm");
    report_.fail("a function of amp_C", "scale, axpby, l2norm or unscale_l2norm", fn);
  }

 private:
  Tensors list(const std::string& argument) const {
    const std::string name = entry_.at(argument).as_string();
    Tensors tensors;
    for (const Json& tensor : file_.json().at("lists").at(name).at("tensors").items()) {
      tensors.push_back(file_.tensor(tensor.as_string()));
    }
    for (const Json& value : entry_.at("inject").items()) {
      if (value.at("list").as_string() != name) continue;
      const at::Tensor flat = tensors.at(static_cast<size_t>(value.at("tensor").as_int())).view(-1);
      flat[value.at("index").as_int()] = value.at("value").as_double();
    }
    return tensors;
  }

  // Recorded outputs hold 7 wherever nothing was written.
  Tensors outputs_for(const Tensors& inputs) const {
    Tensors outputs;
    const at::ScalarType dtype = oracle::dtype_from_name(entry_.at("out_dtype"));
    for (const at::Tensor& input : inputs) outputs.push_back(at::full_like(input, 7, input.options().dtype(dtype)));
    return outputs;
  }

  float number(const std::string& argument) const { return static_cast<float>(entry_.at(argument).as_double()); }

  void scale() {
    const Tensors in = list("src");
    const Tensors out = entry_.bool_or("inplace", false) ? in : outputs_for(in);
    multi_tensor_scale_cuda(kChunk, flag_, {in, out}, number("scale"));
    check(out, {});
  }

  void axpby() {
    const Tensors x = list("x");
    const Tensors out = outputs_for(x);
    multi_tensor_axpby_cuda(kChunk, flag_, {x, list("y"), out}, number("a"), number("b"),
                            static_cast<int>(entry_.at("arg_to_check").as_int()));
    // The bounds that the reference values come with. In float32, two products and their sum are rounded by 2^-24 = 6e-8 each.
    // A sum whose terms cancel in part is smaller than they are. A float16 result may be rounded to the neighbouring number.
    oracle::Tolerance tolerance;
    tolerance.rtol = out[0].scalar_type() == at::kFloat ? 1e-6 : 0;
    tolerance.spacings = out[0].scalar_type() == at::kFloat ? 0 : 1;
    check(out, tolerance);
  }

  void norms(bool unscaled) {
    // The bound that the reference values come with, for sums of squares in float32 as well: some hundred roundings of 2^-24.
    // This library's norms are within 2.5 of them (kernels/multi_tensor.h).
    oracle::Tolerance tolerance;
    tolerance.rtol = 1e-5;
    const TensorLists lists = {list("src")};
    const bool per_tensor = entry_.at("per_tensor").as_bool();
    const auto [norm, each] =
        unscaled ? multi_tensor_unscale_l2norm_cuda(kChunk, flag_, lists, scalar(number("inv_scale")), per_tensor)
                 : multi_tensor_l2norm_cuda(kChunk, flag_, lists, per_tensor);
    check({}, {});
    const Json& expect = entry_.at("expect");
    oracle::compare_number(report_, "norm", norm.item<double>(), expect.at("norm").as_double(), tolerance);
    for (int64_t i = 0; i < each.numel(); ++i) {
      oracle::compare_number(report_, "norm of a tensor", each[i].item<double>(),
                             expect.at("per_tensor").items().at(static_cast<size_t>(i)).as_double(), tolerance);
    }
  }

  void check(const Tensors& outputs, const oracle::Tolerance& tolerance) {
    const Json& expect = entry_.at("expect");
    oracle::compare_number(report_, "flag", flag_.item<int>(), expect.at("flag").as_double(), {});
    if (!expect.has("tensors")) return;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string name = expect.at("tensors").items().at(i).as_string();
      const auto expected = file_.expected(name, outputs[i].numel());
      if (!expected) throw std::runtime_error("'" + name + "' is not stored");
      oracle::compare_tensor(report_, name, outputs[i], *expected, tolerance);
    }
  }

  const CaseFile& file_;
  const Json& entry_;
  oracle::Report& report_;
  at::Tensor flag_;
};

TEST(OracleCases, MultiTensorCasesPass) {
  oracle::Report report;
  for (const auto& folder : std::filesystem::directory_iterator(ORACLE_CASES)) {
    if (folder.path().filename().string().rfind("multi_tensor_", 0) != 0) continue;
    const CaseFile file(folder.path());
    oracle::play(report, file.name(), "multi_tensor", [&] {
      for (const Json& entry : file.json().at("calls").items()) {
        report.at("call " + std::to_string(entry.at("id").as_int()));
        Call(file, entry, report).play();
      }
    });
  }
  EXPECT_GE(report.passed(), 8);
  EXPECT_EQ(report.failed(), 0);
  EXPECT_EQ(report.skipped(), 0);
}

}  // namespace
