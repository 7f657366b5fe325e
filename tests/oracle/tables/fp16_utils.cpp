#include <ATen/Functions.h>
#include <apex_cpp/fp16_utils.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>

#include "tests/oracle/features.h"
#include "tests/oracle/tables/tables.h"
#include "tests/oracle/verdict/compare.h"

namespace oracle {
namespace {

namespace nn = torch::nn;
namespace fp16_utils = apex::fp16_utils;

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

void check_conversion(const Json& row, nn::Module& network, Report& report) {
  check_dtypes(report, network.named_parameters(), row.at("params"));
  check_dtypes(report, network.named_buffers(), row.at("buffers"));
}

at::Tensor input_for(const std::string& network) {
  return network == "conv_bn_linear" ? at::ones({1, 2, 5, 5}) : at::ones({1, 5});
}

template <class Network>
void check_forward(const Json& row, Network& network, Report& report) {
  const at::Tensor output = network.forward(input_for(row.at("network").as_string()));
  compare_text(report, "output", dtype_name(output.scalar_type()), row.at("output_for_float_input").as_string());
}

void play_conversion(const Json& row, Report& report) {
  require_known(row, {"network", "description", "function", "params", "buffers", "output_for_float_input"}, "a conversion");
  const std::string function = row.at("function").as_string();
  nn::Sequential network = make_network(row.at("network").as_string());
  if (function == "convert_network(half)") {
    fp16_utils::convert_network(*network, at::kHalf);
    check_conversion(row, *network, report);
  } else if (function == "BN_convert_float after half()") {
    fp16_utils::convert_all(*network, at::kHalf);
    check_conversion(row, fp16_utils::BN_convert_float(*network), report);
  } else if (function == "network_to_half") {
    const auto half = fp16_utils::network_to_half(network);
    check_conversion(row, *half, report);
    check_forward(row, *half, report);
  } else if (function == "FP16Model") {
    fp16_utils::FP16Model<nn::Sequential> half(network);
    check_conversion(row, half, report);
    check_forward(row, half, report);
  } else {
    throw NeedsFeature("fp16_utils::" + function);
  }
}

std::string typed_shape_text(const at::Tensor& tensor) {
  std::string text = dtype_name(tensor.scalar_type());
  for (int64_t size : tensor.sizes()) text += " " + std::to_string(size);
  return text;
}

std::string typed_shape_text(const Json& entry) {
  std::string text = entry.items().at(0).as_string();
  for (int64_t size : entry.items().at(1).as_ints()) text += " " + std::to_string(size);
  return text;
}

void play_param_lists(const Json& row, Report& report) {
  require_known(row, {"flat_master", "frozen", "model_params", "master_params"}, "a row of prep_param_lists");
  const bool flat = row.at("flat_master").as_bool();
  nn::Sequential network = make_network("conv_bn_linear");
  // A flat master needs one dtype.
  flat ? fp16_utils::convert_all(*network, at::kHalf) : fp16_utils::convert_network(*network, at::kHalf);
  if (row.at("frozen").as_string() != "first parameter") throw NeedsFeature("frozen " + row.at("frozen").as_string());
  network->parameters().front().set_requires_grad(false);
  const auto [params, masters] = fp16_utils::prep_param_lists(*network, flat);
  const auto& expected_params = row.at("model_params").items();
  const auto& expected_masters = row.at("master_params").items();
  compare_text(report, "number of parameters", std::to_string(params.size()), std::to_string(expected_params.size()));
  compare_text(report, "number of masters", std::to_string(masters.size()), std::to_string(expected_masters.size()));
  for (size_t i = 0; i < std::min(params.size(), expected_params.size()); ++i) {
    compare_text(report, "parameter " + std::to_string(i), typed_shape_text(params[i]), typed_shape_text(expected_params[i]));
  }
  for (size_t i = 0; i < std::min(masters.size(), expected_masters.size()); ++i) {
    const std::string what = "master " + std::to_string(i);
    const auto& expected = expected_masters[i].items();
    compare_text(report, what, typed_shape_text(masters[i]), typed_shape_text(expected_masters[i]));
    report.check(masters[i].requires_grad() == expected.at(2).as_bool(), what + " requires_grad", expected.at(2).text(),
                 "the other");
    report.check(masters[i].grad().defined() == expected.at(3).as_bool(), what + " has a gradient", expected.at(3).text(),
                 "the other");
  }
}

double number_or(const Json& args, const std::string& name, double fallback) {
  const Json* value = args.find(name);
  return value ? value->as_double() : fallback;
}

void play_dynamic_scaler(const Json& row, Report& report) {
  const Json& args = row.at("args");
  require_known(row, {"args", "overflow", "scale"}, "a sequence of the legacy scaler");
  require_known(args, {"init_scale", "scale_factor", "scale_window"}, "the arguments of the legacy scaler");
  fp16_utils::DynamicLossScaler scaler(number_or(args, "init_scale", 4294967296.0), number_or(args, "scale_factor", 2.0),
                                       args.int_or("scale_window", 1000));
  const std::string& overflow = row.at("overflow").as_string();
  for (size_t i = 0; i < overflow.size(); ++i) {
    scaler.update_scale(overflow[i] == '1');
    compare_number(report, "scale after update " + std::to_string(i), scaler.loss_scale(),
                   row.at("scale").items().at(i).as_double(), Tolerance());
  }
}

void play_overflow_test(const Json& row, at::ScalarType dtype, Report& report) {
  require_known(row, {"values", "overflow"}, "an overflow test");
  std::vector<double> values;
  for (const Json& value : row.at("values").items()) values.push_back(value.as_double());
  const at::Tensor tensor = at::tensor(values, at::kDouble).to(dtype);
  const bool found = fp16_utils::DynamicLossScaler::has_inf_or_nan(tensor);
  report.check(found == row.at("overflow").as_bool(), "overflow", row.at("overflow").text(), bool_text(found));
}

template <class Play>
void play_rows(const Json& table, const std::string& member, Report& report, Play play_row) {
  const Json* rows = table.find(member);
  if (!rows) return;
  for (size_t i = 0; i < rows->items().size(); ++i) {
    play(report, member + " " + std::to_string(i), "fp16_utils", [&] { play_row(rows->items()[i]); });
  }
}

}  // namespace

void replay_fp16_utils_table(const Json& table, Report& report) {
  for (const Json& row : table.at("conversions").items()) {
    const std::string item = row.at("function").as_string() + " of " + row.at("network").as_string();
    play(report, item, "fp16_utils", [&] { play_conversion(row, report); });
  }
  play_rows(table, "prep_param_lists", report, [&](const Json& row) { play_param_lists(row, report); });
  play_rows(table, "legacy_dynamic_scaler", report, [&](const Json& row) { play_dynamic_scaler(row, report); });
  play_rows(table, "legacy_has_inf_or_nan_float32", report,
            [&](const Json& row) { play_overflow_test(row, at::kFloat, report); });
  play_rows(table, "legacy_has_inf_or_nan_float16", report,
            [&](const Json& row) { play_overflow_test(row, at::kHalf, report); });
}

}  // namespace oracle
