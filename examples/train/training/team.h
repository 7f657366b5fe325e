#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "config/config.h"
#include "models/network.h"

namespace train {

/// The processes that train one network together, each on its own share of every batch. This one is a process alone;
/// examples/distributed has several.
class Team {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor& images)>;

  virtual ~Team() = default;

  virtual int64_t rank() const { return 0; }
  virtual int64_t size() const { return 1; }
  /// The process that writes files and tells how far training is.
  bool leads() const { return rank() == 0; }

  /// Gets a network ready to be trained by all; its forward in training is what this answers.
  virtual Forward join(Network& net, const Config& /*config*/) {
    return [&net](const at::Tensor& images) { return net->forward(images); };
  }
  /// Called before each epoch, with a number that no other epoch of the run has.
  virtual void begin_epoch(uint64_t /*seed*/, uint64_t /*epoch*/) {}
  /// Called before the network is tested or written to a file: what each process has of its own becomes the leader's.
  virtual void agree(Network& /*net*/) {}

  /// Over all processes, for a number that each of them has.
  virtual double mean(double value) { return value; }
  virtual int64_t sum(int64_t value) { return value; }
  /// What the leader makes, for all; its error is everyone's.
  virtual std::string of_leader(const std::function<std::string()>& make) { return make(); }
};

}  // namespace train
