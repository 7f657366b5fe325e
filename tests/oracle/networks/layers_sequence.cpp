// Recurrent layers and the small layers that take a sequence or a tuple apart.
#include <torch/enum.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "tests/oracle/networks/layers.h"
#include "tests/oracle/verdict/report.h"

namespace oracle {
namespace nn = torch::nn;
namespace {

template <class Options>
Options rnn_options(LayerArgs& args) {
  Options options(args.integer("input_size"), args.integer("hidden_size"));
  options.num_layers(args.integer("num_layers", 1)).bias(args.boolean("bias", true));
  options.batch_first(args.boolean("batch_first", false)).bidirectional(args.boolean("bidirectional", false));
  return options;
}

template <class Holder>
Layer hidden_state_layer(Holder rnn) {
  return {rnn.ptr(), [rnn](const Tensors& x) mutable {
            auto [output, hidden] = rnn->forward(x.at(0));
            return Tensors{output, hidden};
          }};
}

Layer make_rnn(LayerArgs& args) {
  auto options = rnn_options<nn::RNNOptions>(args);
  const Json* nonlinearity = args.find("nonlinearity");
  const std::string name = nonlinearity ? nonlinearity->as_string() : "tanh";
  if (name == "relu") {
    options.nonlinearity(torch::kReLU);
  } else if (name != "tanh") {
    throw NeedsFeature("nonlinearity '" + name + "' of layer RNN");
  }
  return hidden_state_layer(nn::RNN(options));
}

Layer make_gru(LayerArgs& args) { return hidden_state_layer(nn::GRU(rnn_options<nn::GRUOptions>(args))); }

Layer make_lstm(LayerArgs& args) {
  nn::LSTM lstm(rnn_options<nn::LSTMOptions>(args));
  return {lstm.ptr(), [lstm](const Tensors& x) mutable {
            auto [output, state] = lstm->forward(x.at(0));
            return Tensors{output, std::get<0>(state), std::get<1>(state)};
          }};
}

Layer make_flatten(LayerArgs& args) {
  const int64_t start = args.integer("start_dim", 1);
  const int64_t end = args.integer("end_dim", -1);
  return {nullptr, [start, end](const Tensors& x) { return Tensors{x.at(0).flatten(start, end)}; }};
}

Layer make_identity(LayerArgs&) {
  return {nullptr, [](const Tensors& x) { return x; }};
}

Layer make_tuple_first(LayerArgs&) {
  return {nullptr, [](const Tensors& x) { return Tensors{x.at(0)}; }};
}

// x[:, -1]
Layer make_last_step(LayerArgs&) {
  return {nullptr, [](const Tensors& x) { return Tensors{x.at(0).select(1, -1)}; }};
}

}  // namespace

void add_sequence_layers(LayerRegistry& registry) {
  registry["RNN"] = make_rnn;
  registry["GRU"] = make_gru;
  registry["LSTM"] = make_lstm;
  registry["Flatten"] = make_flatten;
  registry["Identity"] = make_identity;
  registry["TupleFirst"] = make_tuple_first;
  registry["LastStep"] = make_last_step;
}

}  // namespace oracle
