#include <apex_cpp/amp/casts/replica_casts.h>

#include <ATen/Parallel.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>
#include <vector>

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/dispatch.h>
#include <apex_cpp/amp/casts/thread_casts.h>

namespace apex::amp::detail {
namespace {

// Calls `f` on each thread of the calling one's parallel loops but itself.
template <class F>
void on_workers(F f) {
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    if (at::get_thread_num() != 0) f();
  });
}

// What a worker goes back to, the innermost replica's last.
std::vector<CastsAs*>& casts_of_worker() {
  thread_local std::vector<CastsAs*> instance;
  return instance;
}

class WorkerCasts {
 public:
  explicit WorkerCasts(const std::shared_ptr<const CastRules>& rules) {
    on_workers([&] { casts_of_worker().push_back(new CastsAs(rules)); });
  }
  ~WorkerCasts() {
    on_workers([] {
      auto& casts = casts_of_worker();
      if (casts.empty()) return;
      delete casts.back();
      casts.pop_back();
    });
  }
  WorkerCasts(const WorkerCasts&) = delete;
  WorkerCasts& operator=(const WorkerCasts&) = delete;
};

}  // namespace

std::shared_ptr<void> casts_for_replicas() {
  const auto& here = thread_casts();
  const bool on = c10::impl::tls_is_dispatch_key_included(kCastKey) && !here.disabled;
  if (!on || at::in_parallel_region()) return nullptr;
  return std::make_shared<WorkerCasts>(here.rules);
}

}  // namespace apex::amp::detail
