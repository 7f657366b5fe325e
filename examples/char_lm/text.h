#pragma once
// A text as numbers: each of its bytes stands for itself, by its place among those that occur.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

class Text {
 public:
  /// The last tenth is kept for validation. Errors: std::runtime_error for a file that cannot be read, or of which a part has
  /// not one sequence of `context` characters and the one that follows.
  Text(const std::string& path, int64_t context);

  int64_t vocabulary() const { return static_cast<int64_t>(characters_.size()); }
  const at::Tensor& train() const { return train_; }            // (characters), int64
  const at::Tensor& validation() const { return validation_; }  // as train
  char character(int64_t number) const { return characters_.at(static_cast<size_t>(number)); }

 private:
  std::string characters_;  // sorted
  at::Tensor train_, validation_;
};

struct Sequences {
  at::Tensor characters;  // (count, context), int64
  at::Tensor next;        // what follows each of them
};

/// `count` sequences from random places of a part.
Sequences random_sequences(const at::Tensor& part, int64_t count, int64_t context);
/// A whole part, one sequence after another; what is left at its end is not used.
Sequences all_sequences(const at::Tensor& part, int64_t context);
