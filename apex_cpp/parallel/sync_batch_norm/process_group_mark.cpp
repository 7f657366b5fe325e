#include <apex_cpp/parallel/sync_batch_norm/process_group_mark.h>

#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/parallel/sync_batch_norm/batch_norm_autograd.h>

#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace apex::parallel::detail {
namespace {

struct SyncMarks {
  std::mutex mutex;
  std::unordered_map<uint64_t, SyncMark> by_bits;  // by the bits of the marked eps
  std::atomic<bool> any{false};
};

SyncMarks& marks() {
  static auto* all = new SyncMarks;  // never destroyed: process groups must not be destroyed after main
  return *all;
}

bool same(const SyncMark& a, const SyncMark& b) {
  return a.eps == b.eps && a.group == b.group && a.channel_last == b.channel_last;
}

template <class To, class From>
To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// Changes the last 16 of the 52 fraction bits, and always the highest of these 16: an eps that differs only by rounding from an
// original one is never taken for a marked one.
uint64_t bits_near(double eps, uint64_t number) { return same_bits<uint64_t>(eps) ^ (0x8000 + number); }

}  // namespace

double marked(const SyncMark& mark) {
  auto& [mutex, by_bits, any] = marks();
  const std::lock_guard<std::mutex> lock(mutex);
  any = true;
  uint64_t number = 0;
  while (!same(by_bits.try_emplace(bits_near(mark.eps, number), mark).first->second, mark)) ++number;
  return same_bits<double>(bits_near(mark.eps, number));
}

std::optional<SyncMark> mark_of(double eps) {
  auto& [mutex, by_bits, any] = marks();
  if (!any.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = by_bits.find(same_bits<uint64_t>(eps));
  return found == by_bits.end() ? std::nullopt : std::optional<SyncMark>(found->second);
}

// The kernel of aten::batch_norm on CPUs and GPUs: LibTorch's own, except for marked modules.

namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                      const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  const auto mark = mark_of(eps);
  if (!mark) {
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
  }
  const auto tensor = [](const OptionalTensor& optional) { return optional.value_or(at::Tensor()); };
  const NormTensors tensors{tensor(weight), tensor(bias), tensor(running_mean), tensor(running_var)};
  const NormSettings settings{momentum, mark->eps, mark->channel_last, mark->group};
  return training ? normalize_by_batch(input, tensors, settings) : normalize_by_running(input, tensors, settings);
}

struct Registration {
  std::vector<torch::Library> libraries;

  Registration() {
    if (!amp::detail::is_only_copy()) return;
    for (const auto key :
         {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
      auto& library = libraries.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, static_cast<uint32_t>(__LINE__));
      library.impl("batch_norm", TORCH_FN(batch_norm));
    }
  }
};

const Registration& registration() {
  static const Registration instance;
  return instance;
}

[[maybe_unused]] const Registration& at_load = registration();

}  // namespace

void register_marked_batch_norm() {
  registration();
  amp::detail::check_only_copy();
}

}  // namespace apex::parallel::detail
