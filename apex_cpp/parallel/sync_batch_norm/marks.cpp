#include <apex_cpp/parallel/sync_batch_norm/marks.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace apex::parallel::detail {
namespace {

struct SyncMarks {
  std::mutex mutex;
  std::unordered_map<uint64_t, SyncMark> by_bits;  // of the marked eps
  std::atomic<bool> any{false};
};

SyncMarks& marks() {
  static auto* all = new SyncMarks;  // never destroyed: a group must not end after main
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

// Of 52 bits behind the point the last 16 become others, the first of them always, so that no eps that a program computes in
// two ways is taken for a marked one.
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

}  // namespace apex::parallel::detail
