#include "tests/doctor/networks.h"

namespace apex::test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr int64_t kBatch = 8, kLength = 4, kWidth = 12;

struct FaultyMlp : FaultyNet {
  FaultyMlp() {
    first = register_module("first", nn::Linear(kWidth, 16));
    block = register_module("block", nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({16})), nn::Linear(16, 16)));
    last = register_module("last", nn::Linear(16, 2));
  }
  Tensor forward(Tensor x) override {
    x = torch::tanh(here(0, first(x.flatten(1).narrow(1, 0, kWidth))));
    x = torch::relu(here(1, block->forward(x)));
    return last(here(2, x));
  }
  nn::Linear first{nullptr}, last{nullptr};
  nn::Sequential block;
};

struct FaultyConv : FaultyNet {
  FaultyConv() {
    const auto conv = [](int64_t in, int64_t out) { return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)); };
    stem = register_module("stem", nn::Sequential(conv(1, 3), nn::BatchNorm2d(3)));
    body = register_module("body", nn::Sequential(conv(3, 4), nn::BatchNorm2d(4)));
    head = register_module("head", nn::Linear(4 * 2 * 6, 2));
  }
  Tensor forward(Tensor x) override {
    x = torch::relu(here(0, stem->forward(x.unsqueeze(1))));
    x = torch::relu(body->forward(here(1, x)));
    return head(here(2, torch::max_pool2d(x, 2)).flatten(1));
  }
  nn::Sequential stem, body;
  nn::Linear head{nullptr};
};

struct FaultyRecurrent : FaultyNet {
  FaultyRecurrent() {
    in = register_module("in", nn::Linear(kWidth, 8));
    lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(8, 8).batch_first(true)));
    cell = register_module("cell", nn::GRUCell(8, 8));
    out = register_module("out", nn::Linear(8, 2));
  }
  Tensor forward(Tensor x) override {
    x = here(0, in(x));
    x = here(1, std::get<0>(lstm(x)));
    Tensor state = torch::zeros({x.size(0), 8}, x.options());
    for (int64_t i = 0; i < x.size(1); ++i) state = cell(x.select(1, i), state);
    return out(here(2, state));
  }
  nn::Linear in{nullptr}, out{nullptr};
  nn::LSTM lstm{nullptr};
  nn::GRUCell cell{nullptr};
};

struct FaultyAttention : FaultyNet {
  FaultyAttention() {
    attention = register_module("attention", std::make_shared<nn::Module>("attention"));
    query = attention->register_module("query", nn::Linear(kWidth, kWidth));
    key = attention->register_module("key", nn::Linear(kWidth, kWidth));
    value = attention->register_module("value", nn::Linear(kWidth, kWidth));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    out = register_module("out", nn::Linear(kWidth, 2));
  }
  Tensor forward(Tensor x) override {
    const Tensor queries = query(x), keys = key(x);
    const Tensor scores = here(0, torch::matmul(queries, keys.transpose(1, 2)) / std::sqrt(static_cast<double>(kWidth)));
    const Tensor values = here(1, value(x));
    const Tensor mixed = here(2, torch::matmul(torch::softmax(scores, -1), values));
    return out(norm(x + mixed).mean(1));
  }
  std::shared_ptr<nn::Module> attention;
  nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, out{nullptr};
  nn::LayerNorm norm{nullptr};
};

/// Any of them, as a class that amp knows.
struct FaultyModelImpl : nn::Module {
  explicit FaultyModelImpl(const FaultyProgram& program) : net(register_module("net", make_net(program.kind))) {
    net->plant = program.plant;
    net->place = program.place;
  }
  Tensor forward(Tensor x) { return net->forward(x); }
  std::shared_ptr<FaultyNet> net;
};
TORCH_MODULE(FaultyModel);

struct Batch {
  Tensor x, y;
};

Batch batch_of(int64_t step) {
  auto generator = at::detail::createCPUGenerator(1000 + static_cast<uint64_t>(step));
  const Tensor x = torch::randn({kBatch, kLength, kWidth}, generator, torch::kFloat);
  return {x, torch::stack({x.mean({1, 2}), x.select(1, 0).select(1, 0)}, 1).tanh()};
}

}  // namespace

const std::vector<std::string>& network_kinds() {
  static const std::vector<std::string> kinds{"mlp", "conv", "recurrent", "attention"};
  return kinds;
}

std::string module_at(const std::string& kind, int place) {
  return kind == "attention" && place == 0 ? "net.attention" : "net";
}

std::shared_ptr<FaultyNet> make_net(const std::string& kind) {
  if (kind == "mlp") return std::make_shared<FaultyMlp>();
  if (kind == "conv") return std::make_shared<FaultyConv>();
  if (kind == "recurrent") return std::make_shared<FaultyRecurrent>();
  return std::make_shared<FaultyAttention>();
}

void FaultyProgram::operator()(const amp::OptLevel& level, amp::DoctorRun& run) const {
  train(
      level, [&] { return run.next(); }, [&](const Tensor& loss) { run.loss(loss); });
}

std::vector<double> FaultyProgram::losses(const amp::OptLevel& level, int64_t steps) const {
  std::vector<double> losses;
  const auto next = [&] { return static_cast<int64_t>(losses.size()) < steps; };
  train(level, next, [&](const Tensor& loss) { losses.push_back(loss.item<double>()); });
  return losses;
}

void FaultyProgram::train(const amp::OptLevel& level, const std::function<bool()>& next,
                          const std::function<void(const Tensor&)>& on_loss) const {
  FaultyModel model(*this);
  torch::optim::SGD optimizer(model->parameters(), 0.02);
  auto [net, opt] = amp::initialize(model, optimizer, level);
  for (int64_t step = 0; next(); ++step) {
    const auto [x, y] = batch_of(step);
    opt.zero_grad();
    const Tensor loss = torch::mse_loss(net->forward(x), y);
    {
      auto scaled_loss = amp::scale_loss(loss, opt);
      scaled_loss.backward();
    }
    opt.step();
    on_loss(loss);
  }
}

}  // namespace apex::test
