#include <apex_cpp/parallel/ddp/bucket_tail.h>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace apex::parallel::detail {
namespace {

// What a rank's own element adds up from.
constexpr int kNonfinite = 1, kLacks = 2, kPass = 4;
// How far passes are told apart: every own element is below 256, and exact in bfloat16.
constexpr int kPasses = 64;

}  // namespace

void BucketTail::place(const at::Tensor& memory, size_t params, int ranks, bool counts_present) {
  memory_ = memory.slice(0, memory.numel() - numel(params, ranks));
  params_ = params;
  counts_present_ = counts_present;
}

void BucketTail::say(int rank, int pass, const std::vector<bool>& is_here, const at::Tensor& found_nonfinite) {
  pass_ = pass % kPasses;
  memory_.fill_(0);
  if (counts_present_) memory_.slice(0, 0, static_cast<int64_t>(params_)).fill_(1);
  const at::Tensor own = memory_.select(0, static_cast<int64_t>(params_) + rank);
  own.copy_(found_nonfinite.select(0, 0), /*non_blocking=*/true);
  bool lacks = false;
  for (size_t i = 0; i < is_here.size(); ++i) {
    if (is_here[i]) continue;
    memory_.select(0, static_cast<int64_t>(i)).fill_(counts_present_ ? 0 : 1);
    lacks = true;
  }
  own.add_(kPass * pass_ + (lacks ? kLacks : 0));
}

void BucketTail::fetch() {
  const at::Tensor in_float32 = memory_.to(at::kFloat);  // there: a copy that converts as well would wait for the GPU
  host_ = in_float32.to(at::TensorOptions().device(at::kCPU), /*non_blocking=*/true, /*copy=*/true);
  if (memory_.is_cpu()) return;
  is_there_.emplace(memory_.device().type());
  is_there_->record(c10::impl::VirtualGuardImpl(memory_.device().type()).getStream(memory_.device()));
}

std::vector<float> BucketTail::values() const {
  if (!host_.defined()) return std::vector<float>(static_cast<size_t>(memory_.defined() ? memory_.numel() : 0));
  if (is_there_) is_there_->synchronize();
  return {host_.const_data_ptr<float>(), host_.const_data_ptr<float>() + host_.numel()};
}

std::vector<bool> BucketTail::counted() const {
  const auto all = values();
  std::vector<bool> counted;
  for (size_t i = 0; i < params_; ++i) counted.push_back(all[i] > 0);
  return counted;
}

std::vector<int> BucketTail::ranks_that(const std::function<bool(int)>& says) const {
  const auto all = values();
  std::vector<int> ranks;
  for (size_t i = params_; i < all.size(); ++i) {
    if (says(static_cast<int>(all[i]))) ranks.push_back(static_cast<int>(i - params_));
  }
  return ranks;
}

std::vector<int> BucketTail::ranks_in_another_pass() const {
  if (!host_.defined()) return {};
  return ranks_that([this](int own) { return own / kPass != pass_; });
}

std::vector<int> BucketTail::ranks_that_lack() const {
  return ranks_that([](int own) { return (own & kLacks) != 0; });
}

std::vector<int> BucketTail::ranks_with_nonfinite() const {
  return ranks_that([](int own) { return (own & kNonfinite) != 0; });
}

}  // namespace apex::parallel::detail
