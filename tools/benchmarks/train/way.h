#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

namespace bench::train {

/// A way to train: plain LibTorch, torch's autocast, or a level of amp; with torch::optim::AdamW or FusedAdam.
struct Way {
  std::string kind;                                        // "plain", "autocast BF16", "O5", ...
  std::string level = "";                                  // amp's; empty: without amp
  std::optional<c10::ScalarType> autocast = std::nullopt;  // torch's; half uses dynamic loss scaling
  std::string loss_scale = "";                             // amp's; empty: the level's default
  bool fused = false;                                      // use FusedAdam; with master weights, its fused update

  std::string name() const { return name_of(kind); }
  /// The names of the ways to compare with: a step without 16 bits, and torch's autocast in the same dtype; both with the same
  /// optimizer.
  std::string o0() const { return name_of("O0"); }
  std::string rival() const;
  /// True if this way is `o0` plus a loss scale.
  bool only_scales() const { return level == "O0" && !loss_scale.empty(); }

 private:
  std::string name_of(const std::string& of_kind) const { return of_kind + (fused ? " FusedAdam" : " AdamW"); }
};

constexpr const char* kPlain = "plain AdamW";

/// All ways, `kPlain` first.
std::vector<Way> ways();

}  // namespace bench::train
