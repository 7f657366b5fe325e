#pragma once

#include <apex_cpp/parallel.h>

#include "training/team.h"

namespace distributed {

/// The processes that torchrun, or a hand that set RANK and WORLD_SIZE, started: a process group as examples/train's team.
class Processes : public train::Team {
 public:
  /// Meets the others.
  Processes() : group_(apex::parallel::init_process_group()) {}
  ~Processes() override { apex::parallel::destroy_process_group(); }

  int64_t rank() const override { return group_->getRank(); }
  int64_t size() const override { return group_->getSize(); }
  /// Wraps the network, after `amp::initialize`, in DistributedDataParallel, unless the optimizer itself sums gradients.
  Forward join(train::Network& net, const train::Config& config) override;
  /// Dropout must not drop the same units in every process.
  void begin_epoch(uint64_t seed, uint64_t epoch) override;
  /// Batch norm's running statistics are each process's own.
  void agree(train::Network& net) override;
  double mean(double value) override;
  int64_t sum(int64_t value) override;
  std::string of_leader(const std::function<std::string()>& make) override;

 private:
  apex::parallel::ProcessGroup group_;
};

}  // namespace distributed
