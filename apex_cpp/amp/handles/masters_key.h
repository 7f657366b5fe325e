#pragma once

namespace apex::amp::detail {

/// Where an optimizer handle's archive has its masters.
inline constexpr const char* kMastersKey = "amp_master_weights";

}  // namespace apex::amp::detail
