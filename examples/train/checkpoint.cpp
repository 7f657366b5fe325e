#include "checkpoint.h"

#include <apex_cpp/amp.h>

#include "errors.h"

namespace train {
namespace {

namespace amp = apex::amp;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

void save_checkpoint(const std::string& path, const Network& net, const torch::optim::Optimizer& optimizer,
                     const Position& position) {
  try {
    amp::save_checkpoint(path, net, optimizer,
                         {{"epoch", position.epoch}, {"step", position.step}, {"skipped", position.skipped}});
  } catch (const c10::Error& error) {
    throw UserError(first_line(error.what_without_backtrace()));
  }
}

Position load_checkpoint(const std::string& path, Network& net, torch::optim::Optimizer& optimizer) {
  try {
    const auto loaded = amp::load_checkpoint(path, net, optimizer);
    const auto at = [&](const char* name) { return loaded.metadata.at(name).to_int(); };
    return {at("epoch"), at("step"), at("skipped")};
  } catch (const c10::Error& error) {
    throw UserError("cannot resume from '" + path + "': " + first_line(error.what_without_backtrace()));
  } catch (const std::out_of_range&) {
    throw UserError("cannot resume from '" + path + "': it does not say how far the run had come");
  }
}

}  // namespace train
