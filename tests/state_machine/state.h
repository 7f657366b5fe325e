#pragma once
// The observable state of amp after an event, in which the literal model and the library are compared.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace apex::test {

constexpr int kParams = 7;
constexpr int kOptimizers = 2;
constexpr int kLosses = 3;

/// A tensor of two elements of any dtype, as float.
using Values = std::array<float, 2>;

struct Gradient {
  bool defined = false;
  Values values{};
};

/// A parameter of the model, or the master of one.
struct Weight {
  Values values{};
  Gradient grad;
};

struct ScaleRecord {
  int64_t update;
  double before, after;
  char change;  // 'o'verflow, 'g'rowth, 'r'estored
};

struct ScalerState {
  double scale = 1;
  int64_t unskipped = 0;
  int64_t updates = 0;
  int64_t skipped_in_a_row = 0;
  std::vector<ScaleRecord> history;
};

/// The last step of an optimizer.
struct StepState {
  bool skipped = false;
  double loss_scale = 1;
  int64_t loss_id = 0;
  double scale_before = 1, scale_after = 1;
  bool names_gradient = false;  // with Inf or NaN in it
};

struct State {
  std::array<Weight, kParams> params;
  std::array<bool, kParams> has_master{};
  std::array<Weight, kParams> masters;  // by parameter
  std::array<Values, kParams> momentum{};
  std::array<StepState, kOptimizers> steps;
  std::vector<ScalerState> scalers;
  bool threw = false;  // the event ended in an error
};

/// Where two states differ first, in words; empty if they are the same, NaNs included.
std::string difference(const State& expected, const State& actual);

}  // namespace apex::test
