#include <apex_cpp/amp/state_dict.h>

#include <torch/serialize/archive.h>

#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/session/amp_session.h>

#include <iostream>
#include <sstream>

namespace apex::amp {
namespace {

constexpr const char* kKeyPart = "loss_scaler";
constexpr const char* kFloat8Key = "float8_history";

// A static scale comes from the level and its options. A saved dynamic scale could overflow here, where gradients are not
// checked.
void restore(LossScaler& scaler, size_t index, const LossScalerState& saved) {
  if (scaler.dynamic() || scaler.loss_scale() == saved.loss_scale) return scaler.restore(saved.loss_scale, saved.unskipped);
  std::cout << "amp::load_state_dict: loss scaler " << index << " keeps its static loss scale of " << scaler.loss_scale()
            << "; the saved one was " << saved.loss_scale << ".\n";
}

bool names_a_scaler(const std::string& key) { return key.find(kKeyPart) != std::string::npos; }

}  // namespace

StateDict state_dict() {
  StateDict state;
  size_t index = 0;
  for (const auto& scaler : detail::require_enabled_session("state_dict").scalers) {
    state.insert(kKeyPart + std::to_string(index++), {scaler.loss_scale(), scaler.unskipped()});
  }
  if (const auto history = detail::current_session()->float8_history()) state.float8_history = history->state();
  return state;
}

void load_state_dict(const StateDict& state) {
  detail::Session& session = detail::require_enabled_session("load_state_dict");
  auto& scalers = session.scalers;
  if (state.size() != scalers.size()) {
    std::cout << "amp::load_state_dict: the state has " << state.size() << " loss scalers, amp was initialized with "
              << scalers.size() << ".\n";
  }
  for (const auto& item : state) {
    if (names_a_scaler(item.key())) LossScaler(LossScale(1.0)).restore(item.value().loss_scale, item.value().unskipped);
  }
  const auto history = session.float8_history();
  if (history && state.float8_history.defined()) {
    detail::Float8History::check(state.float8_history, history->parameters().size());
  }
  const std::string note = detail::restore_float8_history(history.get(), state.float8_history, true);
  if (!note.empty()) std::cout << "amp::load_state_dict: " << note << "\n";
  std::ostringstream unexpected;
  size_t next = 0;
  for (const auto& item : state) {
    if (!names_a_scaler(item.key())) {
      unexpected << (unexpected.tellp() > 0 ? ", " : "") << "'" << item.key() << "'";
    } else if (next == scalers.size()) {
      std::cout << "amp::load_state_dict: skipping '" << item.key() << "' and the following entries: there are only "
                << scalers.size() << " loss scalers.\n";
      break;
    } else {
      restore(scalers[next], next, item.value());
      ++next;
    }
  }
  for (const auto& stash : detail::stashes_of(session)) stash->forget_skip();
  TORCH_CHECK(unexpected.tellp() == 0, "amp::load_state_dict: unexpected keys ", unexpected.str(),
              "; expected 'loss_scaler0', 'loss_scaler1', …");
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const StateDict& state) {
  for (const auto& item : state) {
    archive.write(item.key(), c10::IValue(std::make_tuple(item.value().loss_scale, item.value().unskipped)));
  }
  if (state.float8_history.defined()) archive.write(kFloat8Key, c10::IValue(state.float8_history));
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, StateDict& state) {
  StateDict read;
  for (const auto& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    if (key == kFloat8Key && value.isTensor()) {
      read.float8_history = value.toTensor();
      continue;
    }
    TORCH_CHECK(value.isTuple() && value.toTupleRef().elements().size() == 2, "The archive's entry '", key,
                "' is not the state of a loss scaler.");
    const auto& elements = value.toTupleRef().elements();
    read.insert(key, {elements[0].toDouble(), elements[1].toInt()});
  }
  state = std::move(read);
  return archive;
}

}  // namespace apex::amp
