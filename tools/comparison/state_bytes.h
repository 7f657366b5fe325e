#pragma once

#include <string>

namespace comparison {

/// The optimizer state of a checkpoint of amp::save_checkpoint, as state.csv: a row for each tensor of it, with the dtype and
/// size that it has in an optimizer with this storage of moments. Throws UserError where the file is none.
std::string optimizer_state(const std::string& checkpoint, const std::string& moment_storage);

}  // namespace comparison
