#include "training/checkpoint.h"

#include <apex_cpp/amp.h>

#include <tuple>

#include "errors.h"

namespace train {
namespace {

namespace amp = apex::amp;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// A GradScaler's state among the numbers beside a checkpoint.
std::string key_of(const std::string& entry) { return "grad_scaler/" + entry; }

void put_scaler(const amp::GradScaler& scaler, amp::Metadata& metadata) {
  for (const auto& entry : scaler.state_dict()) metadata.insert({key_of(entry.key()), entry.value()});
}

void take_scaler(const amp::Metadata& metadata, amp::GradScaler& scaler) {
  amp::GradScaler::StateDict state;
  for (const auto& entry : scaler.state_dict()) state.insert(entry.key(), metadata.at(key_of(entry.key())).to_double());
  scaler.load_state_dict(state);
}

}  // namespace

void save_checkpoint(const std::string& path, const Training& training, const Position& position) {
  amp::Metadata metadata{{"epoch", position.epoch}, {"step", position.step}, {"skipped", position.skipped}};
  if (training.torch_amp && training.torch_amp->scaler()) put_scaler(*training.torch_amp->scaler(), metadata);
  try {
    if (training.ema) {
      amp::save_checkpoint(path, std::tie(training.net, *training.ema), training.optimizer, metadata);
    } else {
      amp::save_checkpoint(path, training.net, training.optimizers(), metadata);
    }
  } catch (const c10::Error& error) {
    throw UserError(first_line(error.what_without_backtrace()));
  }
}

Position load_checkpoint(const std::string& path, const Training& training) {
  try {
    const auto loaded = training.ema ? amp::load_checkpoint(path, std::tie(training.net, *training.ema), training.optimizer)
                                     : amp::load_checkpoint(path, training.net, training.optimizers());
    if (training.torch_amp && training.torch_amp->scaler()) take_scaler(loaded.metadata, *training.torch_amp->scaler());
    const auto at = [&](const char* name) { return loaded.metadata.at(name).to_int(); };
    return {at("epoch"), at("step"), at("skipped")};
  } catch (const c10::Error& error) {
    throw UserError("cannot resume from '" + path + "': " + first_line(error.what_without_backtrace()));
  } catch (const std::out_of_range&) {
    throw UserError("cannot resume from '" + path + "': it does not record the step that the run had reached");
  }
}

}  // namespace train
