#include <apex_cpp/amp/masters/sharded_order.h>

#include <utility>

namespace apex::amp::detail {

void ShardedOrder::begin(std::shared_ptr<GradShards> shards, bool held, const LossScaler& scaler) {
  shards_ = std::move(shards);
  shards_->begin_pass(held, scaler.looks());
}

void ShardedOrder::exit(LossScaler& scaler) {
  shards_->end_pass(scaler.loss_scale());
  if (scaler.looks() && shards_->pass_overflowed()) scaler.check({shards_->norm()});
}

void ShardedOrder::drop() {
  if (shards_) shards_->drop();
}

}  // namespace apex::amp::detail
