#pragma once

#include <apex_cpp/parallel.h>

#include "training/team.h"

namespace distributed {

/// The process group of torchrun, or of hand-set RANK and WORLD_SIZE, as examples/train's Team.
class Processes : public train::Team {
 public:
  /// Joins the process group.
  Processes() : group_(apex::parallel::init_process_group()) {}
  ~Processes() override {
    group_.reset();  // so that destroy_process_group waits for what is in flight
    apex::parallel::destroy_process_group();
  }

  int64_t rank() const override { return group_->getRank(); }
  int64_t size() const override { return group_->getSize(); }
  /// Wraps the network in DistributedDataParallel, after `amp::initialize`, unless the optimizer itself sums the gradients.
  Forward join(train::Network& net, const train::Config& config) override;
  /// Seeds each process differently, so that dropout does not drop the same units in all of them.
  void begin_epoch(uint64_t seed, uint64_t epoch) override;
  /// Broadcasts rank 0's buffers: each process computes its own running statistics of batch norm.
  void agree(train::Network& net) override;
  double mean(double value) override;
  int64_t sum(int64_t value) override;
  std::string of_leader(const std::function<std::string()>& make) override;

 private:
  apex::parallel::ProcessGroup group_;
};

}  // namespace distributed
