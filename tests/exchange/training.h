#pragma once
// One training run of a pair, without amp, with a GradScaler or at a level of amp, that reads and writes training states.
#include <apex_cpp/amp/grad_scaler.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/exchange/pairs.h"

namespace apex::test {

/// The gradients of all steps: whole 64ths of at most 2, which 16-bit types hold, also times the loss scales of the tests.
class ExchangeGradients {
 public:
  explicit ExchangeGradients(const ExchangeNet& model, int steps);
  explicit ExchangeGradients(const std::string& path);
  void save(const std::string& path) const;
  const at::Tensor& at(int step, const std::string& param) const;

 private:
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
};

/// `mode`: "plain", "scaler" or a level.
class ExchangeTraining {
 public:
  ExchangeTraining(const ExchangePair& pair, const std::string& mode);
  ~ExchangeTraining();
  ExchangeTraining(const ExchangeTraining&) = delete;
  ExchangeTraining& operator=(const ExchangeTraining&) = delete;

  /// Steps `begin` to `end`. With a scaler, steps 1 and 4 have an Inf and are skipped.
  void run(const ExchangeGradients& gradients, int begin, int end);
  void save(const std::string& path) const;
  std::vector<std::string> load(const std::string& path);

  ExchangeNet model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::optional<amp::GradScaler> scaler;

 private:
  at::Tensor loss_of(const ExchangeGradients& gradients, int step, bool overflows) const;
  bool has_amp_;
};

}  // namespace apex::test
