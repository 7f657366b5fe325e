#include <apex_cpp/amp/scaling/overflow_exchange.h>

#include <mutex>
#include <utility>

namespace apex::amp::detail {
namespace {

struct CurrentExchange {
  std::mutex mutex;
  OverflowExchange exchange;
};

CurrentExchange& current_exchange() {
  static CurrentExchange instance;
  return instance;
}

}  // namespace

OverflowExchange set_overflow_exchange(OverflowExchange exchange) {
  auto& current = current_exchange();
  const std::lock_guard<std::mutex> lock(current.mutex);
  return std::exchange(current.exchange, std::move(exchange));
}

std::vector<int> ranks_with_overflow(const LossScaler& scaler, bool found_here) {
  if (!scaler.looks()) return {};
  auto& current = current_exchange();
  std::unique_lock<std::mutex> lock(current.mutex);
  const OverflowExchange exchange = current.exchange;
  lock.unlock();
  return exchange ? exchange(found_here) : std::vector<int>{};
}

}  // namespace apex::amp::detail
