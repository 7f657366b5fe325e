#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <string>

namespace apex::amp {

/// What `Doctor` compares, how long it trains for it, and what it takes for agreement.
struct DoctorOptions {
  /// The level that the other is compared with.
  TORCH_ARG(std::string, reference) = "O0";
  /// Steps for which the search trains.
  TORCH_ARG(int64_t, steps) = 50;
  /// Seeds of the reference's training runs, from `seed` on: at least 2, since their spread says what is good enough.
  TORCH_ARG(int64_t, seeds) = 3;
  /// Of the default generators at the beginning of each run.
  TORCH_ARG(uint64_t, seed) = 0;
  /// Ratios of signal to noise, in dB, that tensors of the forward pass, and gradients, have to reach.
  TORCH_ARG(double, min_sqnr) = 20;
  TORCH_ARG(double, min_gradient_sqnr) = 6;
  /// Called before each run with what it is for, to show how far the doctor is.
  TORCH_ARG(std::function<void(const std::string&)>, on_run);
};

}  // namespace apex::amp
