#include "checkpoint.h"

#include <sstream>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/serialize/archive.h>

#include <apex_cpp/amp.h>

#include "errors.h"
#include "run_folder.h"

namespace train {
namespace {

namespace amp = apex::amp;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

template <class Part>
void write_part(OutputArchive& archive, const std::string& key, const Part& part) {
  OutputArchive nested(archive.compilation_unit());
  part.save(nested);
  archive.write(key, nested);
}

template <class Part>
void read_part(InputArchive& archive, const std::string& key, Part& part) {
  InputArchive nested;
  archive.read(key, nested);
  part.load(nested);
}

int64_t read_integer(InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return value.toInt();
}

at::Generator generator_of(at::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator() : at::globalContext().defaultGenerator(device);
}

void read_generator(InputArchive& archive, const std::string& key, at::Device device) {
  c10::IValue state;
  archive.read(key, state);
  generator_of(device).set_state(state.toTensor().cpu());
}

}  // namespace

void save_checkpoint(const std::string& path, const torch::nn::Module& net, const torch::optim::Optimizer& optimizer,
                     at::Device device, const Position& position) {
  OutputArchive archive;
  write_part(archive, "net", net);
  write_part(archive, "optimizer", optimizer);
  OutputArchive scalers(archive.compilation_unit());
  scalers << amp::state_dict();
  archive.write("amp", scalers);
  archive.write("cpu_generator", c10::IValue(generator_of(at::kCPU).get_state()));
  archive.write("device_generator", c10::IValue(generator_of(device).get_state()));
  archive.write("epoch", c10::IValue(position.epoch));
  archive.write("step", c10::IValue(position.step));
  archive.write("skipped", c10::IValue(position.skipped));
  std::ostringstream bytes;
  archive.save_to(bytes);
  write_whole(path, bytes.str());
}

Position load_checkpoint(const std::string& path, torch::nn::Module& net, torch::optim::Optimizer& optimizer,
                         at::Device device) {
  try {
    InputArchive archive;
    archive.load_from(path, device);
    read_part(archive, "net", net);
    read_part(archive, "optimizer", optimizer);
    InputArchive scalers;
    archive.read("amp", scalers);
    amp::StateDict state;
    scalers >> state;
    amp::load_state_dict(state);
    read_generator(archive, "cpu_generator", at::kCPU);
    read_generator(archive, "device_generator", device);
    return {read_integer(archive, "epoch"), read_integer(archive, "step"), read_integer(archive, "skipped")};
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    throw UserError("cannot resume from '" + path + "': " + reason.substr(0, reason.find('\n')));
  }
}

}  // namespace train
