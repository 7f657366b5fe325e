#include <apex_cpp/parallel/distributed_data_parallel.h>

#include <apex_cpp/parallel/ddp/engine.h>

#include <c10/util/Exception.h>

namespace apex::parallel {

detail::DdpHandle::DdpHandle(const torch::nn::Module& module, const DistributedDataParallelOptions& options)
    : engine_(DdpEngine::attach(module, options)) {}

const std::shared_ptr<detail::DdpEngine>& detail::DdpHandle::engine() const {
  TORCH_CHECK(engine_, "This DistributedDataParallel was moved from. Use the object that it was moved into.");
  return engine_;
}

void detail::DdpHandle::begin_forward() const { engine()->begin_forward(); }
void detail::DdpHandle::pause() const { engine()->pause(); }
void detail::DdpHandle::resume() const { engine()->resume(); }
std::vector<at::Tensor> detail::DdpHandle::allreduce_buffers() const { return engine()->allreduce_buffers(); }

NoSync::NoSync(std::shared_ptr<detail::DdpEngine> engine) : engine_(std::move(engine)) { engine_->pause(); }

NoSync::~NoSync() {
  if (engine_) engine_->resume();
}

}  // namespace apex::parallel
