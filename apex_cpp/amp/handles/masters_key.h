#pragma once

namespace apex::amp::detail {

/// Where an optimizer handle's archive has its masters.
inline constexpr const char* kMastersKey = "amp_master_weights";
/// And in there, where their parameters stand among those of all groups.
inline constexpr const char* kPositionsKey = "positions";

}  // namespace apex::amp::detail
