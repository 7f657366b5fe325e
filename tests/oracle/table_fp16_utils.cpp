#include <apex_cpp/fp16_utils.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "tests/oracle/compare.h"
#include "tests/oracle/tables.h"

namespace oracle {
namespace {

namespace nn = torch::nn;

// The table's networks; layers without parameters only hold their index.
nn::Sequential make_network(const std::string& name) {
  if (name == "conv_bn_linear") {
    return nn::Sequential(nn::Conv2d(2, 3, 3), nn::BatchNorm2d(3), nn::Functional(torch::relu), nn::Flatten(),
                          nn::Linear(27, 4));
  }
  if (name == "linear_ln") return nn::Sequential(nn::Linear(5, 4), nn::LayerNorm(nn::LayerNormOptions({4})));
  throw NeedsFeature("network " + name);
}

template <class Entries>
void check_dtypes(Report& report, const Entries& entries, const Json& expect) {
  compare_text(report, "number of tensors", std::to_string(entries.size()), std::to_string(expect.members().size()));
  for (const auto& entry : entries) {
    const Json* dtype = expect.find(entry.key());
    compare_text(report, entry.key(), dtype_name(entry.value().scalar_type()), dtype ? dtype->as_string() : "not to exist");
  }
}

void play_conversion(const Json& row, Report& report) {
  const std::string function = row.at("function").as_string();
  if (function != "convert_network(half)") throw NeedsFeature("fp16_utils::" + function);
  nn::Sequential network = make_network(row.at("network").as_string());
  apex::fp16_utils::convert_network(*network, at::kHalf);
  check_dtypes(report, network->named_parameters(), row.at("params"));
  check_dtypes(report, network->named_buffers(), row.at("buffers"));
}

void skip_rows(const Json& table, const std::string& member, const std::string& feature, Report& report) {
  const Json* rows = table.find(member);
  if (!rows) return;
  for (size_t i = 0; i < rows->items().size(); ++i) report.skip(member + " " + std::to_string(i), "needs " + feature);
}

}  // namespace

void replay_fp16_utils_table(const Json& table, Report& report) {
  for (const Json& row : table.at("conversions").items()) {
    const std::string item = row.at("function").as_string() + " of " + row.at("network").as_string();
    play(report, item, "fp16_utils", [&] { play_conversion(row, report); });
  }
  skip_rows(table, "prep_param_lists", "fp16_utils::prep_param_lists", report);
  skip_rows(table, "legacy_dynamic_scaler", "fp16_utils::DynamicLossScaler", report);
  skip_rows(table, "legacy_has_inf_or_nan_float32", "fp16_utils::DynamicLossScaler", report);
  skip_rows(table, "legacy_has_inf_or_nan_float16", "fp16_utils::DynamicLossScaler", report);
}

}  // namespace oracle
