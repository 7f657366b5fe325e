#include "tests/exchange/hostile_states.h"

#include <unistd.h>

#include <ATen/Context.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "tests/errors.h"

namespace apex::test {

std::string bytes_in(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

HostileStates::HostileStates() : folder_(testing::TempDir() + "hostile" + std::to_string(getpid())) {
  std::filesystem::create_directory(folder_);
  at::manual_seed(5);
  ExchangeTraining training(exchange_pair("adam"), "scaler");
  training.run(ExchangeGradients(training.model, 2), 0, 2);
  training.save(path());
}

// File by file: libtorch.so exports a copy of std::filesystem::remove_all that lacks its directory iterators and crashes.
HostileStates::~HostileStates() {
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(folder_, ignored)) std::filesystem::remove(file.path(), ignored);
  std::filesystem::remove(folder_, ignored);
}

void HostileStates::expect_refused(const std::vector<std::string>& texts, const std::string& pair, const std::string& mode) {
  at::manual_seed(6);
  ExchangeTraining training(exchange_pair(pair), mode);
  training.run(ExchangeGradients(training.model, 1), 0, 1);
  training.save(path("before"));
  expect_error([&] { training.load(path("damaged")); }, texts);
  training.save(path("after"));
  EXPECT_EQ(bytes_in(path("before")), bytes_in(path("after"))) << texts.front();
}

void HostileStates::expect_refused(const Damage& damage, const std::vector<std::string>& texts, const std::string& pair,
                                   const std::string& mode) {
  TensorFile file = amp::detail::read_safetensors(path());
  auto object = Json::parse(file.metadata.at("training_state"));
  damage(file, object);
  file.metadata["training_state"] = object.dump();
  amp::detail::write_safetensors(path("damaged"), file);
  expect_refused(texts, pair, mode);
}

HostileStates::Damage HostileStates::with(const std::string& pointer, const Json& value) {
  return [=](TensorFile&, Json& state) { state[Json::json_pointer(pointer)] = value; };
}

HostileStates::Damage HostileStates::without(const std::string& pointer, const std::string& key) {
  return [=](TensorFile&, Json& state) { state[Json::json_pointer(pointer)].erase(key); };
}

at::Tensor& HostileStates::tensor_in(TensorFile& file, const std::string& name) {
  for (auto& [key, tensor] : file.tensors) {
    if (key == name) return tensor;
  }
  throw std::runtime_error("no tensor " + name);
}

}  // namespace apex::test
