// Training states that do not fit, or that Python would not write, are refused before anything is changed.
#include <apex_cpp/amp.h>
#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "tests/exchange/hostile_states.h"

namespace apex::test {
namespace {

using amp::detail::read_safetensors;
using amp::detail::TensorFile;
using amp::detail::write_safetensors;
using nlohmann::json;

constexpr const char* kNothingChanged = "was not loaded, and nothing was changed: ";
const std::string kGroup = "/optimizer/param_groups/0/";

TEST_F(HostileStates, TruncatedFiles) {
  const auto bytes = bytes_in(path());
  for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    std::ofstream(path("damaged"), std::ios::binary) << bytes.substr(0, size);
    expect_refused({"cannot read '" + path("damaged") + "'"});
  }
}

TEST_F(HostileStates, HugeHeaders) {
  auto bytes = bytes_in(path());
  for (const size_t byte : {5, 7}) {
    auto huge = bytes;
    huge[byte] = '\x7f';
    std::ofstream(path("damaged"), std::ios::binary) << huge;
    expect_refused({"its header would be ", "It was cut short, or it is not a safetensors file."});
  }
}

TEST_F(HostileStates, OtherFiles) {
  ExchangeTraining training(exchange_pair("adam"), "plain");
  amp::save_checkpoint(path("damaged"), training.model, training.optimizer);
  expect_refused({kNothingChanged, "not a training state", "amp::load_checkpoint"});
  amp::save_safetensors(path("damaged"), training.model);
  expect_refused({kNothingChanged, "not a training state", "amp::load_safetensors"});
}

TEST_F(HostileStates, JsonOfAnotherKind) {
  for (const char* text : {"", "{", "[1]", "null", "{\"version\": NaN}", "3"}) {
    TensorFile file = read_safetensors(path());
    file.metadata["training_state"] = text;
    write_safetensors(path("damaged"), file);
    expect_refused({kNothingChanged, "rite the file again"});
  }
  // Neither a message nor a check recurses into values.
  TensorFile file = read_safetensors(path());
  const std::string deep(1000000, '[');
  file.metadata["training_state"] = "{\"version\": " + deep + std::string(deep.size(), ']') + "}";
  write_safetensors(path("damaged"), file);
  expect_refused({"its 'version' is a list, expected a whole number"});
}

TEST_F(HostileStates, OtherShapes) {
  const Damage weight = [](TensorFile& file, json&) { tensor_in(file, "model/first.weight") = at::zeros({5, 9}); };
  expect_refused(weight, {"'first.weight' is Float[5, 9] in the file and Float[9, 5] here", "built like the saved one"});
  const Damage state = [](TensorFile& file, json&) { tensor_in(file, "optimizer/state/1/exp_avg") = at::zeros({1}); };
  expect_refused(state, {"'exp_avg' of parameter 1, 'first.bias', is Float[1] in the file, expected Float[9]"});
}

TEST_F(HostileStates, OtherDtypes) {
  for (const auto dtype : {at::kLong, at::kHalf, at::kDouble}) {
    const Damage weight = [=](TensorFile& file, json&) {
      auto& tensor = tensor_in(file, "model/second.bias");
      tensor = tensor.to(dtype);
    };
    expect_refused(weight, {"'second.bias' is ", " in the file, expected Float"});
    const Damage state = [=](TensorFile& file, json&) {
      auto& tensor = tensor_in(file, "optimizer/state/3/exp_avg_sq");
      tensor = tensor.to(dtype);
    };
    expect_refused(state, {"'exp_avg_sq' of parameter 3, 'second.bias', is ", "expected Float[2]"});
  }
}

TEST_F(HostileStates, MissingTensors) {
  const auto drop = [](const std::string& name) {
    return [=](TensorFile& file, json&) {
      file.tensors.erase(
          std::find_if(file.tensors.begin(), file.tensors.end(), [&](const auto& t) { return t.first == name; }));
    };
  };
  expect_refused(drop("model/first.bias"), {"'first.bias'", "missing"});
  expect_refused(drop("optimizer/state/2/exp_avg_sq"), {"the state of parameter 2, 'second.weight', has no 'exp_avg_sq'"});
  expect_refused(drop("optimizer/state/2/max_exp_avg_sq"), {"has no 'max_exp_avg_sq'"});
}

TEST_F(HostileStates, UnknownTensors) {
  const auto add = [](const std::string& name) {
    return [=](TensorFile& file, json&) { file.tensors.emplace_back(name, at::zeros({2})); };
  };
  expect_refused(add("model/third.bias"), {"Only in the file: 'third.bias'"});
  expect_refused(add("optimizer/state/0/momentum_buffer"), {"is no state of torch.optim.Adam, which has exp_avg, exp_avg_sq"});
  expect_refused(add("optimizer/state/0"), {"'optimizer/state/0' is no state of torch.optim.Adam"});
  expect_refused(add("optimizer/state/4/exp_avg"), {"it has a state of the parameter '4', and only 4 parameters"});
  for (const char* position : {"-1", "x", "", "99999999999999999999", "1 "}) {
    expect_refused(add(std::string("optimizer/state/") + position + "/exp_avg"), {"it has a state of the parameter"});
  }
  // Messages show 80 characters of a position.
  expect_refused(add("optimizer/state/" + std::string(100, 'x') + "/exp_avg"),
                 {"a state of the parameter '" + std::string(80, 'x') + "', and only 4 parameters"});
  expect_refused(add("gradients/0"), {"'gradients/0' belongs neither to a model nor to an optimizer"});
}

TEST_F(HostileStates, MissingEntries) {
  for (const char* key : {"version", "optimizer", "scaler"}) expect_refused(without("", key), {"it has no '", key});
  for (const char* key : {"class", "params", "param_groups", "state"}) {
    expect_refused(without("/optimizer", key), {std::string("it has no 'optimizer/") + key + "'", "Write the file again"});
  }
  for (const char* key : {"lr", "betas", "maximize", "params"}) {
    expect_refused(without("/optimizer/param_groups/0", key),
                   {std::string("it has no 'optimizer/param_groups/0/") + key + "'"});
  }
  expect_refused(without("/optimizer/state", "1"), {"it has no 'optimizer/state/1/step'"});
  for (const char* key : {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}) {
    expect_refused(without("/scaler", key), {std::string("it has no 'scaler/") + key + "'"});
  }
}

TEST_F(HostileStates, UnknownEntries) {
  expect_refused(with("/other", 1), {"has the unknown entry 'other'"});
  expect_refused(with("/optimizer/other", 1), {"its 'optimizer' has the unknown entry 'other'"});
  expect_refused(with(kGroup + "momentum", 1),
                 {"'optimizer/param_groups/0' has the unknown entry 'momentum'", "lr, betas, eps"});
  expect_refused(with("/optimizer/state/0/other", 1), {"'optimizer/state/0' has the unknown entry 'other'"});
  expect_refused(with("/scaler/other", 1), {"its 'scaler' has the unknown entry 'other'"});
  expect_refused(with("/version", 2), {"it is a training state of version 2, this apex_cpp reads version 1. Use a newer one."});
}

TEST_F(HostileStates, Steps) {
  for (const json& step : {json(-1), json(1.5), json("1"), json(nullptr), json(true), json(1e300), json::array({1})}) {
    expect_refused(with("/optimizer/state/2/step", step),
                   {"its 'optimizer/state/2/step' is ", "expected a whole number of at least 0"});
  }
  expect_refused(with("/optimizer/state/4", {{"step", 1}}), {"it has a state of the parameter '4'"});
}

TEST_F(HostileStates, ListsAndNumbersInPlaceOfObjects) {
  expect_refused(with("/optimizer/state", json::array()), {"its 'optimizer/state' is a list, expected an object"});
  expect_refused(with("/optimizer/state/2", 3), {"its 'optimizer/state/2' is 3, expected an object"});
  expect_refused(with("/scaler", json::array({1})), {"its 'scaler' is a list, expected an object"});
  expect_refused(with(kGroup + "lr", json::object()), {"its 'optimizer/param_groups/0/lr' is an object, expected a "});
}

TEST_F(HostileStates, StepsOfAClassThatCountsNone) {
  ExchangeTraining training(exchange_pair("sgd_nesterov"), "plain");
  training.save(path("damaged"));
  TensorFile file = read_safetensors(path("damaged"));
  auto state = json::parse(file.metadata.at("training_state"));
  state["optimizer"]["state"]["0"] = {{"step", 1}};
  file.metadata["training_state"] = state.dump();
  write_safetensors(path("damaged"), file);
  expect_refused({"its 'optimizer/state/0' is an object, expected nothing: torch.optim.SGD counts no steps"}, "sgd_nesterov",
                 "plain");
}

TEST_F(HostileStates, Options) {
  for (const json& lr : {json(-0.1), json("nan"), json(nullptr), json::array({1})}) {
    expect_refused(with(kGroup + "lr", lr), {"its 'optimizer/param_groups/0/lr' is ", "expected a "});
  }
  for (const json& betas : {json(0.9), json::array({0.9}), json::array({0.9, 1.0}), json::array({-0.1, 0.9})}) {
    expect_refused(with(kGroup + "betas", betas), {"its 'optimizer/param_groups/0/betas", "expected "});
  }
  expect_refused(with(kGroup + "amsgrad", 1), {"expected true or false"});
  expect_refused(with(kGroup + "maximize", true),
                 {"has maximize True, which torch::optim::Adam does not compute. Set it False"});
}

TEST_F(HostileStates, Scales) {
  for (const json& scale : {json(0), json(-1), json(1e39), json(1e-50), json("nan"), json("inf"), json(nullptr)}) {
    expect_refused(with("/scaler/scale", scale), {"its 'scaler/scale' is ", "expected a "});
  }
  // As text, for what the writer of JSON does not write.
  for (const std::string scale : {"NaN", "Infinity", "1e999"}) {
    TensorFile file = read_safetensors(path());
    auto& text = file.metadata.at("training_state");
    const auto at = text.find("\"scale\":") + 8;
    text.replace(at, text.find('}', at) - at, scale);
    write_safetensors(path("damaged"), file);
    expect_refused({kNothingChanged, "rite the file again"});
  }
  expect_refused(with("/scaler/growth_factor", 1), {"its 'scaler/growth_factor' is 1, expected a number above 1"});
  expect_refused(with("/scaler/backoff_factor", 1.5),
                 {"its 'scaler/backoff_factor' is 1.5, expected a number between 0 and 1"});
  expect_refused(with("/scaler/growth_interval", 0),
                 {"its 'scaler/growth_interval' is 0, expected a whole number of at least 1"});
  expect_refused(with("/scaler/_growth_tracker", -3), {"its 'scaler/_growth_tracker' is -3, expected a whole number"});
  expect_refused(with("/scaler/_growth_tracker", 3000000000),
                 {"its 'scaler/_growth_tracker' is 3000000000, expected a whole number below 2147483648"});
  expect_refused(with("/scaler", nullptr), {"it has no loss scale for the amp::GradScaler"});
  expect_refused(with("/scaler/growth_factor", 3.0), {"its loss scale grows by 3 and backs off by 0.5, amp's by 2 and 0.5"},
                 "adam", "O2");
}

TEST_F(HostileStates, OtherParameters) {
  expect_refused(with("/optimizer/params", {"first.bias", "first.weight", "second.weight", "second.bias"}),
                 {"the optimizer's parameter 0 is 'first.bias' in the file and 'first.weight' here", "the same parameters"});
  expect_refused(with("/optimizer/params", {"first.weight"}),
                 {"its 'optimizer/param_groups/0/params/1' is 1, expected a number below 1"});
  expect_refused(with("/optimizer/params/0", nullptr), {"its 'optimizer/params/0' is null, expected a text"});
  expect_refused(with(kGroup + "params", {0, 1, 3, 2}), {"its parameter group 0 has the parameters [0, 1, 3, 2]"});
  expect_refused(with(kGroup + "params", {0, 1, 2, 4}), {"expected a number below 4"});
  const Damage second_group = [](TensorFile&, json& state) {
    auto& groups = state["optimizer"]["param_groups"];
    groups.push_back(groups[0]);
  };
  expect_refused(second_group, {"its optimizer has 2 parameter groups, this one has 1"});
}

TEST_F(HostileStates, OtherClasses) {
  const Damage none = [](TensorFile&, json&) {};
  expect_refused(none,
                 {"it holds the state of a torch.optim.Adam. The class here, torch::optim::SGD, continues torch.optim.SGD"},
                 "sgd_nesterov", "plain");
  expect_refused(none, {"The class here, apex::optimizers::FusedAdagrad, continues torch.optim.Adagrad"}, "fused_adagrad",
                 "plain");
  expect_refused(with("/optimizer/class", "Lion"),
                 {"its 'optimizer/class' is \"Lion\", expected SGD, Adam, AdamW, RMSprop or Adagrad"});
  expect_refused(with("/optimizer/class", "AdamW"), {"it holds the state of a torch.optim.AdamW"});
}

// One to three edits at random places.
std::string damaged_text(std::string text, std::mt19937& random) {
  const auto below = [&](size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random); };
  const std::string signs = "0123456789{}[]\",:.-eE tfn\\";
  for (size_t edits = 1 + below(3); edits > 0; --edits) {
    const size_t at = below(text.size());
    if (below(2) == 0) {
      text[at] = signs[below(signs.size())];
    } else if (below(2) == 0) {
      text.erase(at, 1 + below(12));
    } else {
      text.insert(at, text.substr(below(text.size()), 1 + below(40)));
    }
  }
  return text;
}

TEST_F(HostileStates, RandomDamageIsRefusedWholeOrLoaded) {
  const TensorFile file = read_safetensors(path());
  ExchangeTraining training(exchange_pair("adam"), "scaler");
  training.load(path());
  std::mt19937 random(8);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    TensorFile damaged = file;
    auto& text = damaged.metadata.at("training_state");
    text = damaged_text(text, random);
    write_safetensors(path("damaged"), damaged);
    try {
      training.load(path("damaged"));
      training.load(path());
    } catch (const c10::Error&) {
      ++refused;
      training.save(path("after"));
      ASSERT_EQ(bytes_in(path()), bytes_in(path("after"))) << text;
    }
  }
  EXPECT_GT(refused, 150) << "the test has lost its point";
}

}  // namespace
}  // namespace apex::test
