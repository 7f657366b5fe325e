#include "tests/amp/support.h"

#include <sstream>

#if defined(__SANITIZE_THREAD__)
// LibTorch is not instrumented: where it drops the last reference to a tensor, the counting that orders this after another
// thread's use is not seen, and the freeing is called a race. Only frees are left out, those of c10d's operations and of
// copy-on-write memory among them (the latter takes a lock in memory that another thread has made), what c10d's log and Gloo's
// threads share among themselves, and the cache of oneDNN, which two threads fill at the same time on CPUs with 16-bit
// instructions of both kinds; everything else is watched.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions() {
  return "race_top:operator delete\n"
         "race:c10::intrusive_ptr<*reset_not_null_\n"
         "race:c10::intrusive_ptr<*release_resources_\n"
         "race:c10::impl::cow::COWDeleterContext::decrement_refcount\n"
         "race:c10d::*Async*Work::~\n"
         "race:c10d::FlightRecorder\n"
         "race:c10d::ProcessGroupGloo::runLoop\n"
         "race:dnnl::impl::primitive_cache_iface_t\n";
}
#endif

namespace apex::test {

ConvNetImpl::ConvNetImpl() {
  conv = register_module("conv", torch::nn::Conv2d(1, 4, 3));
  bn = register_module("bn", torch::nn::BatchNorm2d(4));
  fc = register_module("fc", torch::nn::Linear(4 * 4 * 4, 3));
}

torch::Tensor ConvNetImpl::forward(torch::Tensor x) { return fc(torch::relu(bn(conv(x))).flatten(1)); }

MlpImpl::MlpImpl(int64_t in, int64_t out) {
  fc1 = register_module("fc1", torch::nn::Linear(in, 5));
  fc2 = register_module("fc2", torch::nn::Linear(5, out));
}

torch::Tensor MlpImpl::forward(torch::Tensor x) { return fc2(torch::relu(fc1(x))); }

void ReplicatedImpl::reset() { fc = register_module("fc", torch::nn::Linear(6, 3)); }

torch::Tensor ReplicatedImpl::forward(torch::Tensor x) { return fc(x); }

torch::Tensor images() { return torch::arange(4 * 36, torch::kFloat).reshape({4, 1, 6, 6}).sin(); }
torch::Tensor features() { return torch::arange(24, torch::kFloat).reshape({4, 6}).cos(); }
amp::InitializeOptions quiet() { return amp::InitializeOptions().verbosity(0); }

namespace {

std::string hash_of(const std::string& bytes) {
  std::ostringstream text;
  text << std::hex << std::hash<std::string>()(bytes) << "#" << std::dec << bytes.size();
  return text.str();
}

std::string raw(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  const auto flat = tensor.detach().contiguous();
  std::string bytes(static_cast<const char*>(flat.data_ptr()), flat.nbytes());
  return bytes + "/" + c10::toString(tensor.scalar_type());
}

}  // namespace

std::string bytes_of(const torch::Tensor& tensor) { return hash_of(raw(tensor)); }

std::string bytes_of(torch::optim::Optimizer& optimizer) {
  // The archive's keys are addresses, so each state is written by itself, in the order of the parameters.
  std::string bytes;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& param : group.params()) {
      bytes += raw(param);
      const auto state = optimizer.state().find(param.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      torch::serialize::OutputArchive archive;
      state->second->serialize(archive);
      std::ostringstream stream;
      archive.save_to(stream);
      bytes += stream.str();
    }
  }
  return hash_of(bytes);
}

std::string bytes_of(const torch::nn::Module& module) {
  std::string bytes;
  for (const auto& item : module.named_parameters()) bytes += item.key() + raw(item.value());
  for (const auto& item : module.named_buffers()) bytes += item.key() + raw(item.value());
  return hash_of(bytes);
}

::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "expected \"" << part << "\" in: " << (text.empty() ? "(no error)" : text);
}

void AmpTest::SetUp() {
  amp::reset();
  torch::manual_seed(7);
}

void AmpTest::TearDown() { amp::reset(); }

}  // namespace apex::test
