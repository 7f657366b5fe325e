#include "tests/oracle/session/resume_check.h"

#include <set>

#include "tests/oracle/session/session.h"

namespace oracle {
namespace {

// Kept in the model or in gradients, where no checkpoint has it.
bool is_not_saved(const std::string& op) {
  static const std::set<std::string> kOps = {"mode", "set_requires_grad", "add_param_group", "set_grad"};
  return kOps.count(op) > 0;
}

bool loads_everything(const Json& load) {
  const Json* order = load.find("order");
  return !order || order->items().size() == 3;
}

std::string key_of(const Session& session, const Json& event) {
  std::string key = event.at("op").as_string();
  for (const char* field : {"model", "optimizer", "kind", "target", "loss_id", "multiply", "max_norm"}) {
    if (const Json* value = event.find(field)) key += " " + value->text();
  }
  const Json* input = event.find("input");
  if (input && session.case_file().has_tensor(input->as_string())) key += " " + input->as_string();
  return key;
}

std::vector<at::Tensor> values_after(Session& session, const Json& event) {
  const std::string op = event.at("op").as_string();
  std::vector<at::Tensor> values;
  if (op == "forward") values.push_back(session.value(event.at("output").as_string()));
  if (op == "loss") values.push_back(session.value(event.at("as").as_string()));
  if (op == "record") {
    for (auto& slot : session.models()) {
      for (const auto& entry : slot.net->named_parameters()) values.push_back(entry.value());
      for (const auto& entry : slot.net->named_buffers()) values.push_back(entry.value());
    }
    for (auto& slot : session.optimizers()) {
      for (const auto& group : slot.optimizer->param_groups()) {
        values.insert(values.end(), group.params().begin(), group.params().end());
      }
    }
  }
  for (auto& value : values) value = value.detach().clone();
  return values;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = [](const at::Tensor& tensor) { return tensor.contiguous().flatten().view(at::kByte); };
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && bytes(a).equal(bytes(b));
}

// Gradients from before the save are not in it: every optimizer must start from none.
template <class Log>
bool begins_with_zero_grads(const Log& log, size_t optimizers) {
  size_t zeroed = 0;
  while (zeroed < log.size() && log[zeroed].key.rfind("zero_grad", 0) == 0) ++zeroed;
  return zeroed >= optimizers;
}

}  // namespace

std::string ResumeCheck::obstacle(Session& session, const Json& load) const {
  const auto log = logs_.find(load.at("from").as_string());
  if (log == logs_.end()) return "the checkpoint lacks something that the run had set, or is of a run that was resumed itself";
  if (!loads_everything(load)) return "a part of the checkpoint is not loaded";
  if (!begins_with_zero_grads(log->second, session.optimizers().size())) return "gradients from before the save are used";
  return "";
}

void ResumeCheck::begin(Session& session, const Json& load) {
  loaded_ = true;
  next_ = 0;
  expected_ = nullptr;
  const std::string reason = obstacle(session, load);
  if (!reason.empty()) return end(session.report(), reason);
  expected_ = &logs_.at(load.at("from").as_string());
}

void ResumeCheck::end(Report& report, const std::string& reason) {
  expected_ = nullptr;
  report.leave_out("a resumed run with the run that was saved: " + reason);
}

void ResumeCheck::finish(Report& report) {
  if (expected_ && next_ < expected_->size()) end(report, "it ends before that one");
}

void ResumeCheck::compare(Session& session, const Entry& entry) {
  const bool same_event = next_ < expected_->size() && (*expected_)[next_].key == entry.key;
  if (!same_event) return end(session.report(), "it goes on to do other things");
  const auto& wanted = (*expected_)[next_++].values;
  bool same = wanted.size() == entry.values.size();
  for (size_t i = 0; same && i < wanted.size(); ++i) same = same_bits(entry.values[i], wanted[i]);
  session.report().check(same, "resumed run", "the bits of the run that was saved", "others");
}

void ResumeCheck::add(Session& session, const Json& event) {
  const std::string op = event.at("op").as_string();
  sets_what_is_not_saved_ |= is_not_saved(op) && logs_.empty();
  if (op == "load") return begin(session, event);
  if (op == "rebuild") loaded_ = true;  // what comes now belongs to no run that was saved
  if (expected_ && op == "rebuild") finish(session.report());
  if (expected_ && is_not_saved(op)) end(session.report(), "it sets something that a checkpoint lacks");
  if (op == "rebuild") expected_ = nullptr;
  const Entry entry = {key_of(session, event), values_after(session, event)};
  if (expected_) compare(session, entry);
  if (!loaded_) {
    for (auto& [name, log] : logs_) log.push_back(entry);
  }
  if (op == "save" && !sets_what_is_not_saved_ && !loaded_) logs_[event.at("as").as_string()];
}

}  // namespace oracle
