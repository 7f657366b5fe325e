#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

namespace bench::train {

/// How a step is made: plain LibTorch, torch's autocast, or a level of amp, with torch::optim::AdamW or FusedAdam.
struct Way {
  std::string kind;                                        // "plain", "autocast BF16", "O5", ...
  std::string level = "";                                  // of amp; empty: without amp
  std::optional<c10::ScalarType> autocast = std::nullopt;  // torch's; for half with dynamic loss scaling
  std::string loss_scale = "";                             // of amp; empty: the level's own
  bool fused = false;                                      // FusedAdam; where there are masters, in the fused order

  std::string name() const { return name_of(kind); }
  /// The names of what it is compared with: a step without 16 bits, and torch's autocast in the same type; both with the same
  /// optimizer.
  std::string o0() const { return name_of("O0"); }
  std::string rival() const;
  /// Whether it is `o0` but for a loss scale.
  bool only_scales() const { return level == "O0" && !loss_scale.empty(); }

 private:
  std::string name_of(const std::string& of_kind) const { return of_kind + (fused ? " FusedAdam" : " AdamW"); }
};

constexpr const char* kPlain = "plain AdamW";

/// All of them, `kPlain` first.
std::vector<Way> ways();

}  // namespace bench::train
