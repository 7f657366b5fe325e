// An LSTM that classifies sequences by its last state.
#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "network.h"

namespace bench::train {
namespace {

constexpr int64_t kSequenceClasses = 10;

struct SequenceSizes {
  int64_t inputs, units, length, batch;
};

SequenceSizes sequence_sizes(bool quick) {
  if (quick) return {16, 32, 8, 4};
  return {64, 256, 32, 32};
}

/// Maps [N, length, inputs] to [N, units], the state after the last element.
struct LastStateImpl : torch::nn::Module {
  explicit LastStateImpl(const SequenceSizes& sizes)
      : lstm(register_module(
            "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(sizes.inputs, sizes.units).num_layers(2).batch_first(true)))) {}
  at::Tensor forward(const at::Tensor& sequences) { return std::get<0>(lstm(sequences)).select(1, -1); }

  torch::nn::LSTM lstm;
};
TORCH_MODULE(LastState);

Network lstm_network(bool quick) {
  const auto sizes = sequence_sizes(quick);
  return Network(torch::nn::Sequential(LastState(sizes), torch::nn::Linear(sizes.units, kSequenceClasses)));
}

Batch sequences(bool quick) {
  const auto sizes = sequence_sizes(quick);
  return {at::randn({sizes.batch, sizes.length, sizes.inputs}), at::randint(kSequenceClasses, {sizes.batch}, at::kLong)};
}

}  // namespace

Task lstm_task() { return {"lstm", lstm_network, sequences}; }

}  // namespace bench::train
