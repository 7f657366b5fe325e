// Pure memory traffic, with the widest registers that the machine has.
#include "stream_cpu.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace bench::kernels {
namespace {

/// Elements per task of a thread: part of one tensor, or several small tensors together.
constexpr int64_t kPart = 65536;
constexpr int64_t kShare = 32768;
/// Elements of one list before the next list's turn. With larger blocks the hardware prefetchers lose track.
constexpr int64_t kBlock = 256;
/// Prefetch distance, in bytes.
constexpr int64_t kAhead = 2048;

// A zero that compilers cannot recognize: adding it leaves memory unchanged, but still needs a load and a store.
uint64_t opaque_zero() {
  static volatile uint64_t zero = 0;
  return zero;
}

/// Reads `bytes` and returns 0.
using Read = uint64_t (*)(const char* from, int64_t bytes);
/// Stores the values read, or zeros; `zero` is 0.
using Store = void (*)(char* to, int64_t bytes, uint64_t zero);

struct Loops {
  Read read;
  Store update, write, write_past_caches;
};

template <class Word>
uint64_t read_words(const char* from, int64_t bytes) {
  uint64_t seen = 0;
  for (int64_t i = 0; i + static_cast<int64_t>(sizeof(Word)) <= bytes; i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, from + i, sizeof(word));
    seen |= word;
  }
  return seen & opaque_zero();
}

template <class Word>
void update_words(char* to, int64_t bytes, uint64_t zero) {
  for (int64_t i = 0; i + static_cast<int64_t>(sizeof(Word)) <= bytes; i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, to + i, sizeof(word));
    word = static_cast<Word>(word | zero);
    std::memcpy(to + i, &word, sizeof(word));
  }
}

void write_bytes(char* to, int64_t bytes, uint64_t zero) {
  std::memset(to, static_cast<int>(zero), static_cast<size_t>(bytes));
}

constexpr Loops kPlain{read_words<uint16_t>, update_words<uint16_t>, write_bytes, write_bytes};

#ifdef __x86_64__

template <bool kFetches>
[[gnu::target("avx512f")]] uint64_t read_avx512(const char* from, int64_t bytes) {
  __m512i seen = _mm512_setzero_si512();
  int64_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    if constexpr (kFetches) __builtin_prefetch(from + i + kAhead);
    seen = _mm512_or_si512(seen, _mm512_loadu_si512(from + i));
  }
  return (_mm512_test_epi64_mask(seen, seen) & opaque_zero()) | read_words<uint16_t>(from + i, bytes - i);
}

template <bool kFetches>
[[gnu::target("avx512f")]] void update_avx512(char* to, int64_t bytes, uint64_t zero) {
  const __m512i zeros = _mm512_set1_epi64(static_cast<long long>(zero));
  int64_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    if constexpr (kFetches) __builtin_prefetch(to + i + kAhead);
    _mm512_storeu_si512(to + i, _mm512_or_si512(zeros, _mm512_loadu_si512(to + i)));
  }
  update_words<uint16_t>(to + i, bytes - i, zero);
}

[[gnu::target("avx512f")]] void write_avx512(char* to, int64_t bytes, uint64_t zero) {
  const __m512i zeros = _mm512_set1_epi64(static_cast<long long>(zero));
  int64_t i = 0;
  for (; i + 64 <= bytes; i += 64) _mm512_storeu_si512(to + i, zeros);
  write_bytes(to + i, bytes - i, zero);
}

[[gnu::target("avx512f")]] void write_past_caches_avx512(char* to, int64_t bytes, uint64_t zero) {
  if (reinterpret_cast<uintptr_t>(to) % 64 != 0) return write_avx512(to, bytes, zero);
  const __m512i zeros = _mm512_set1_epi64(static_cast<long long>(zero));
  int64_t i = 0;
  for (; i + 64 <= bytes; i += 64) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), zeros);
  write_bytes(to + i, bytes - i, zero);
}

template <bool kFetches>
[[gnu::target("avx2")]] uint64_t read_avx2(const char* from, int64_t bytes) {
  __m256i seen = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    if constexpr (kFetches) __builtin_prefetch(from + i + kAhead);
    seen = _mm256_or_si256(seen, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
  alignas(32) uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), seen);
  return ((words[0] | words[1] | words[2] | words[3]) & opaque_zero()) | read_words<uint16_t>(from + i, bytes - i);
}

template <bool kFetches>
[[gnu::target("avx2")]] void update_avx2(char* to, int64_t bytes, uint64_t zero) {
  const __m256i zeros = _mm256_set1_epi64x(static_cast<long long>(zero));
  int64_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    if constexpr (kFetches) __builtin_prefetch(to + i + kAhead);
    auto* const at = reinterpret_cast<__m256i*>(to + i);
    _mm256_storeu_si256(at, _mm256_or_si256(zeros, _mm256_loadu_si256(at)));
  }
  update_words<uint16_t>(to + i, bytes - i, zero);
}

[[gnu::target("avx2")]] void write_past_caches_avx2(char* to, int64_t bytes, uint64_t zero) {
  if (reinterpret_cast<uintptr_t>(to) % 32 != 0) return write_bytes(to, bytes, zero);
  const __m256i zeros = _mm256_set1_epi64x(static_cast<long long>(zero));
  int64_t i = 0;
  for (; i + 32 <= bytes; i += 32) _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), zeros);
  write_bytes(to + i, bytes - i, zero);
}

template <bool kFetches>
const Loops& widest() {
  static constexpr Loops kAvx512{read_avx512<kFetches>, update_avx512<kFetches>, write_avx512, write_past_caches_avx512};
  static constexpr Loops kAvx2{read_avx2<kFetches>, update_avx2<kFetches>, write_bytes, write_past_caches_avx2};
  return __builtin_cpu_supports("avx512f") ? kAvx512 : __builtin_cpu_supports("avx2") ? kAvx2 : kPlain;
}

const Loops& loops(bool fetches) { return fetches ? widest<true>() : widest<false>(); }
#else
const Loops& loops(bool) { return kPlain; }
#endif

}  // namespace

StreamPass::StreamPass(const PassTraffic& lists, const Way& way) : way_(way) {
  for (const auto& [tensors, access] : lists) {
    List list{{}, tensors.empty() ? 1 : static_cast<int64_t>(tensors.front().element_size()), access};
    for (const auto& tensor : tensors) list.data.push_back(static_cast<char*>(tensor.data_ptr()));
    lists_.push_back(std::move(list));
  }
  const Tensors& first = lists.front().tensors;
  for (size_t index = 0; index < first.size(); ++index) {
    const int64_t numel = first[index].numel();
    for (int64_t begin = 0; begin < numel; begin += kPart) parts_.push_back({index, begin, std::min(kPart, numel - begin)});
  }
}

void StreamPass::run(const Part& part) const {
  const Loops& loop = loops(way_.fetches);
  uint64_t zero = 0;
  for (int64_t start = 0; start < part.size; start += kBlock) {
    const int64_t size = std::min(kBlock, part.size - start);
    for (const List& list : lists_) {
      char* const at = list.data[part.index] + (part.begin + start) * list.element_size;
      const int64_t bytes = size * list.element_size;
      if (list.access == Access::read) {
        zero |= loop.read(at, bytes);
      } else if (list.access == Access::update) {
        loop.update(at, bytes, zero);
      } else {
        (way_.past_caches ? loop.write_past_caches : loop.write)(at, bytes, zero);
      }
    }
  }
}

// Threads take parts dynamically, so that a thread delayed by other work does not hold up the rest.
void StreamPass::run() const {
  const auto count = static_cast<int64_t>(parts_.size());
  int64_t numel = 0;
  for (const Part& part : parts_) numel += part.size;
  const int64_t share = std::max<int64_t>(1, kShare * count / std::max<int64_t>(1, numel));
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), (count + share - 1) / share);
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t begin = next.fetch_add(share); begin < count; begin = next.fetch_add(share)) {
      for (int64_t i = begin; i < std::min(begin + share, count); ++i) run(parts_[static_cast<size_t>(i)]);
    }
#ifdef __x86_64__
    if (way_.past_caches) _mm_sfence();
#endif
  });
}

}  // namespace bench::kernels
