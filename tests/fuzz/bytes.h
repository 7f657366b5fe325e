#pragma once
// An input as a list of choices: a fuzzer that changes a byte changes one choice.
#include <cstddef>
#include <cstdint>

namespace apex::fuzz {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}

  /// The next byte; 0 after the last one.
  uint8_t next() { return next_ == end_ ? uint8_t{0} : *next_++; }
  /// A number in [0, n), for n <= 256.
  size_t below(size_t n) { return next() % n; }
  template <class List>
  const auto& one_of(const List& list) {
    return list[below(list.size())];
  }

 private:
  const uint8_t* next_;
  const uint8_t* end_;
};

}  // namespace apex::fuzz
