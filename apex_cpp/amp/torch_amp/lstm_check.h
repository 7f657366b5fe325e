#pragma once

namespace apex::amp::detail {

/// On a CPU for which oneDNN has no 16-bit LSTM (one without AVX512): from now on `torch::nn::LSTM` with FP32 input under
/// torch's CPU autocast is an error that names the remedy, in place of LibTorch's of a failed primitive. Elsewhere nothing.
/// What the check does not refuse runs as before. Done once; thread-safe.
void check_lstm_under_autocast();

}  // namespace apex::amp::detail
