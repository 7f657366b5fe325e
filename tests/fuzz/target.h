#pragma once
// A fuzz target: a function that takes any bytes, and one that mutates a valid input.

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace apex::fuzz {

using Random = std::mt19937_64;

/// A number in [0, below).
inline size_t pick(Random& random, size_t below) { return static_cast<size_t>(random() % below); }
inline bool one_in(Random& random, size_t n) { return pick(random, n) == 0; }

/// Mutates `input`, an entry of `corpus`, in ways that suit the target's format. Each target defines it.
std::string mutate(std::string input, const std::vector<std::string>& corpus, Random& random);

/// The number of bytes that the target may allocate for an input of that size. Each target defines it.
size_t most_memory(size_t input_bytes);

/// The number of inputs that were valid to the end. The target counts them, to show that it gets that far.
inline size_t inputs_read = 0;

}  // namespace apex::fuzz

/// libFuzzer's entry point. Reading the input must return a value or throw c10::Error; any other exception is a failure.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);
