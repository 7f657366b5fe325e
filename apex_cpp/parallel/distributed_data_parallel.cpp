#include <apex_cpp/parallel/distributed_data_parallel.h>

#include <apex_cpp/parallel/ddp/engine.h>

namespace apex::parallel {

detail::DdpHandle::DdpHandle(const torch::nn::Module& module, const DistributedDataParallelOptions& options)
    : engine_(DdpEngine::attach(module, options)) {}

void detail::DdpHandle::begin_forward() const { engine_->begin_forward(); }
void detail::DdpHandle::pause() const { engine_->pause(); }
void detail::DdpHandle::resume() const { engine_->resume(); }
std::vector<at::Tensor> detail::DdpHandle::allreduce_buffers() const { return engine_->allreduce_buffers(); }

NoSync::NoSync(std::shared_ptr<detail::DdpEngine> engine) : engine_(std::move(engine)) { engine_->pause(); }

NoSync::~NoSync() {
  if (engine_) engine_->resume();
}

}  // namespace apex::parallel
