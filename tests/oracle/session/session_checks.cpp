// What a case expects right after `initialize`: dtypes, properties, scalers.
#include "tests/oracle/session/session.h"

namespace oracle {
namespace {

std::string optional_bool_text(const std::optional<bool>& value) { return value ? bool_text(*value) : "null"; }

// `entries` are the model's own names; `expect` has "MODEL/NAME": dtype.
template <class Entries>
size_t check_entries(Report& report, const std::string& model, const Entries& entries, const Json& expect) {
  size_t known = 0;
  for (const auto& entry : entries) {
    const std::string id = model + "/" + entry.key();
    const Json* dtype = expect.find(id);
    if (!dtype) {
      report.fail(id, "not to exist", dtype_name(entry.value().scalar_type()));
      continue;
    }
    ++known;
    compare_text(report, id + ", dtype", dtype_name(entry.value().scalar_type()), dtype->as_string());
  }
  return known;
}

std::string loss_scale_text(const amp::LossScale& scale) { return scale.dynamic ? "dynamic" : number_text(scale.value); }

}  // namespace

void Session::check_initialized(const Json& expect) {
  report_.at("after initialize");
  check_dtypes(expect);
  if (!amp_enabled_) return;
  if (expect.has("properties")) check_properties(expect.at("properties"));
  if (expect.has("num_loss_scalers")) {
    compare_number(report_, "num_loss_scalers", static_cast<double>(amp::num_loss_scalers()),
                   expect.at("num_loss_scalers").as_double(), {});
  }
  if (expect.has("amp_state")) check_amp_state(expect.at("amp_state"));
}

void Session::check_dtypes(const Json& expect) {
  size_t parameters = 0, buffers = 0;
  for (const auto& slot : models_) {
    parameters += check_entries(report_, slot.name, slot.net->named_parameters(), expect.at("params"));
    buffers += check_entries(report_, slot.name, slot.net->named_buffers(), expect.at("buffers"));
  }
  const auto count = [](size_t n) { return std::to_string(n); };
  compare_text(report_, "number of parameters", count(parameters), count(expect.at("params").members().size()));
  compare_text(report_, "number of buffers", count(buffers), count(expect.at("buffers").members().size()));
}

void Session::check_properties(const Json& expect) {
  const auto& got = amp::properties();
  auto check = [&](const char* name, const std::string& value) {
    if (const Json* wanted = expect.find(name)) compare_text(report_, std::string("property ") + name, value, wanted->text());
  };
  check("enabled", bool_text(got.enabled));
  check("opt_level", got.opt_level);
  check("cast_model_type", got.cast_model_type ? dtype_name(*got.cast_model_type) : "null");
  check("patch_torch_functions", bool_text(got.patch_torch_functions));
  check("keep_batchnorm_fp32", optional_bool_text(got.keep_batchnorm_fp32));
  check("master_weights", optional_bool_text(got.master_weights));
  if (const Json* wanted = expect.find("loss_scale")) {
    const std::string text = wanted->is_number() ? number_text(wanted->as_double()) : wanted->text();
    compare_text(report_, "property loss_scale", loss_scale_text(got.loss_scale), text);
  }
}

void Session::check_amp_state(const Json& expect) {
  const amp::StateDict state = amp::state_dict();
  compare_text(report_, "number of entries in amp.state_dict", std::to_string(state.size()),
               std::to_string(expect.members().size()));
  for (const auto& [name, wanted] : expect.members()) {
    const amp::LossScalerState* got = state.find(name);
    if (!got) {
      report_.fail("amp.state_dict", "an entry " + name, "none");
      continue;
    }
    compare_number(report_, name + ".loss_scale", got->loss_scale, wanted.at("loss_scale").as_double(), {});
    compare_number(report_, name + ".unskipped", static_cast<double>(got->unskipped), wanted.at("unskipped").as_double(), {});
  }
}

}  // namespace oracle
