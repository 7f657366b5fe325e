#pragma once

#include <string>

namespace comparison {

/// The optimizer state in a checkpoint of amp::save_checkpoint, as state.csv: a row for each tensor of it, with its dtype and
/// size. Throws UserError where the file is none.
std::string optimizer_state(const std::string& checkpoint);

}  // namespace comparison
