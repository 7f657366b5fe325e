// save, rebuild, load; amp's own state.
#include <c10/util/Exception.h>
#include <torch/serialize.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <sstream>

#include "tests/amp/saved.h"
#include "tests/oracle/events/events.h"
#include "tests/oracle/session/session.h"
#include "tests/oracle/verdict/exceptions.h"

namespace oracle {
namespace {

using apex::test::restore;
using apex::test::saved;

std::string optimizer_bytes(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

torch::serialize::InputArchive opened(const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  return archive;
}

void load_optimizer(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  torch::serialize::InputArchive archive = opened(bytes);
  optimizer.load(archive);
}

Checkpoint take_checkpoint(Session& session) {
  Checkpoint checkpoint;
  for (auto& slot : session.models()) checkpoint.models[slot.name] = slot.handle ? saved(*slot.handle) : saved(slot.net);
  for (auto& slot : session.optimizers()) {
    checkpoint.optimizers[slot.name] = slot.fp16 ? saved(*slot.fp16) : optimizer_bytes(*slot.optimizer);
  }
  if (session.amp_enabled()) checkpoint.amp = amp::state_dict();
  return checkpoint;
}

// "4.weight" of a saved model: the archive of child "4" holds "weight".
at::Tensor saved_tensor(const std::string& bytes, const std::string& name) {
  torch::serialize::InputArchive archive = opened(bytes);
  std::istringstream path(name);
  std::string part, rest;
  std::getline(path, part, '.');
  while (std::getline(path, rest, '.')) {
    torch::serialize::InputArchive child;
    if (!archive.try_read(part, child)) return {};
    archive = std::move(child);
    part = rest;
  }
  at::Tensor tensor;
  if (!archive.try_read(part, tensor) && !archive.try_read(part, tensor, /*is_buffer=*/true)) return {};
  return tensor;
}

void check_saved_models(Session& session, const std::string& tag, const Checkpoint& checkpoint, const Json& dtypes) {
  for (const auto& [id, dtype] : dtypes.members()) {
    const size_t slash = id.find('/');
    const std::string model = id.substr(0, slash);
    const std::string name = session.model(model).net->resolve(id.substr(slash + 1));
    const at::Tensor tensor = saved_tensor(checkpoint.models.at(model), name);
    if (!tensor.defined()) {
      session.report().fail("saved " + id, "a tensor", "none");
      continue;
    }
    compare_text(session.report(), "saved " + id + ", dtype", dtype_name(tensor.scalar_type()), dtype.as_string());
    session.compare_stored("state." + tag + "." + id, tensor, session.tolerances().parameter(tensor.scalar_type(), 0));
  }
}

using torch::serialize::InputArchive;

InputArchive part_of(InputArchive& archive, const std::string& name) {
  InputArchive part;
  if (!archive.try_read(name, part)) throw std::runtime_error("a saved optimizer has no part '" + name + "'");
  return part;
}

int64_t size_in(InputArchive& archive, const std::string& name) {
  at::Tensor size;
  archive.read(name, size);
  return size.item<int64_t>();
}

// The keys of the parameters in a saved optimizer, through all groups.
std::vector<std::string> saved_keys(InputArchive& optimizer) {
  InputArchive groups = part_of(optimizer, "param_groups");
  std::vector<std::string> keys;
  for (int64_t g = 0; g < size_in(groups, "param_groups/size"); ++g) {
    InputArchive group = part_of(groups, "param_groups/" + std::to_string(g));
    for (int64_t p = 0; p < size_in(group, "params/size"); ++p) {
      c10::IValue key;
      group.read("params/" + std::to_string(p), key);
      keys.push_back(key.toStringRef());
    }
  }
  return keys;
}

// The types of all states in a saved optimizer. Keys are OPTIMIZER.POSITION.STATE, positions running through all groups.
void add_saved_states(const std::string& name, const std::string& bytes, std::map<std::string, std::string>& states) {
  InputArchive archive = opened(bytes);
  InputArchive wrapped;
  if (archive.try_read("optimizer", wrapped)) archive = std::move(wrapped);  // FP16_Optimizer's
  InputArchive all = part_of(archive, "state");
  const auto keys = saved_keys(archive);
  for (size_t position = 0; position < keys.size(); ++position) {
    InputArchive state;
    if (!all.try_read(keys[position], state)) continue;
    for (const std::string& entry : state.keys()) {
      c10::IValue value;
      state.read(entry, value);
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      states[name + "." + std::to_string(position) + "." + entry] = dtype_name(value.toTensor().scalar_type());
    }
  }
}

void check_saved_optimizers(Session& session, const Checkpoint& checkpoint, const Json& dtypes) {
  std::map<std::string, std::string> got;
  for (const auto& [name, bytes] : checkpoint.optimizers) add_saved_states(name, bytes, got);
  for (const auto& [key, dtype] : dtypes.members()) {
    auto found = got.find(key);
    compare_text(session.report(), "saved optimizer state " + key, found == got.end() ? "none" : found->second,
                 dtype.as_string());
  }
  compare_text(session.report(), "number of saved optimizer states", std::to_string(got.size()),
               std::to_string(dtypes.members().size()));
}

void play_save(Session& session, const Json& event) {
  const std::string tag = event.at("as").as_string();
  const Checkpoint& checkpoint = session.checkpoints()[tag] = take_checkpoint(session);
  const Json* expect = event.find("expect");
  if (!expect) return;
  if (expect->has("amp_state")) session.check_amp_state(expect->at("amp_state"));
  if (expect->has("model_state_dtypes")) check_saved_models(session, tag, checkpoint, expect->at("model_state_dtypes"));
  if (expect->has("optimizer_state_dtypes")) check_saved_optimizers(session, checkpoint, expect->at("optimizer_state_dtypes"));
}

void play_rebuild(Session& session, const Json& event) {
  for (auto& slot : session.optimizers()) check_will_skip(session, slot);
  session.start();
  if (const Json* expect = event.find("expect")) session.check_initialized(*expect);
}

void load_part(Session& session, const std::string& part, const Checkpoint& checkpoint) {
  if (part == "model") {
    for (auto& slot : session.models()) {
      const std::string& bytes = checkpoint.models.at(slot.name);
      slot.handle ? restore(*slot.handle, bytes) : restore(slot.net, bytes);
    }
  } else if (part == "optimizer") {
    for (auto& slot : session.optimizers()) {
      const std::string& bytes = checkpoint.optimizers.at(slot.name);
      slot.fp16 ? restore(*slot.fp16, bytes) : load_optimizer(*slot.optimizer, bytes);
    }
  } else if (part == "amp") {
    if (session.amp_enabled()) amp::load_state_dict(checkpoint.amp);
  } else {
    throw NeedsFeature("loading of '" + part + "'");
  }
}

void play_load(Session& session, const Json& event) {
  const Checkpoint& checkpoint = session.checkpoints().at(event.at("from").as_string());
  std::vector<std::string> order = {"model", "optimizer", "amp"};
  if (const Json* given = event.find("order")) {
    order.clear();
    for (const Json& part : given->items()) order.push_back(part.as_string());
  }
  for (const auto& part : order) load_part(session, part, checkpoint);
  const Json* expect = event.find("expect");
  if (expect && expect->has("amp_state")) session.check_amp_state(expect->at("amp_state"));
}

void play_amp_state(Session& session, const Json& event) { session.check_amp_state(event.at("expect").at("amp_state")); }

// Collects what is written to standard output and as LibTorch warnings while it lives.
class PrintedLines : public c10::WarningHandler {
 public:
  PrintedLines() : stream_(std::cout.rdbuf(text_.rdbuf())), handler_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
  }
  ~PrintedLines() override {
    std::cout.rdbuf(stream_);
    c10::WarningUtils::set_warning_handler(handler_);
  }
  PrintedLines(const PrintedLines&) = delete;
  PrintedLines& operator=(const PrintedLines&) = delete;

  void process(const c10::Warning& warning) override { text_ << warning.msg() << "\n"; }
  int64_t count() const {
    const std::string text = text_.str();
    return std::count(text.begin(), text.end(), '\n');
  }

 private:
  std::ostringstream text_;
  std::streambuf* stream_;
  c10::WarningHandler* handler_;
};

void play_load_amp_state(Session& session, const Json& event) {
  amp::StateDict state;
  for (const auto& [name, value] : event.at("state").members()) {
    const Json* scale = value.find("loss_scale");
    state.insert(name, {scale ? scale->as_double() : 1.0, value.int_or("unskipped", 0)});
  }
  const Json& expect = event.at("expect");
  int64_t lines = 0;
  check_exception(session.report(), expect.find("exception"), [&] {
    const PrintedLines printed;
    try {
      amp::load_state_dict(state);
    } catch (...) {
      lines = printed.count();
      throw;
    }
    lines = printed.count();
  });
  if (expect.has("printed_lines")) {
    compare_number(session.report(), "printed lines", static_cast<double>(lines), expect.at("printed_lines").as_double(), {});
  }
  session.check_amp_state(expect.at("amp_state"));
}

}  // namespace

void add_checkpoint_events(EventRegistry& registry) {
  registry["save"] = {{"as"}, {"amp_state", "model_state_dtypes", "optimizer_state_dtypes"}, play_save};
  registry["rebuild"] = {{}, {"params", "buffers", "properties", "amp_state", "num_loss_scalers"}, play_rebuild};
  registry["load"] = {{"from", "order"}, {"amp_state"}, play_load};
  registry["amp_state"] = {{}, {"amp_state"}, play_amp_state};
  registry["load_amp_state"] = {{"state"}, {"amp_state", "exception", "printed_lines"}, play_load_amp_state};
}

}  // namespace oracle
