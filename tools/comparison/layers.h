#pragma once

#include <string>

#include "pass.h"

namespace comparison {

/// A level beside O0, layer by layer, as tables.
struct LayerTables {
  std::string layers;     // layers.csv: how far each tensor is from O0's, and what underflows in it
  std::string exponents;  // exponents.csv: how many values have which exponent
};

/// `pass` beside that of O0 at the same weights on the same batch. O0's values have to be represented: from them follows
/// the share that underflows in the dtype that the level has there, gradients at `loss_scale`.
LayerTables compare_layers(const Pass& reference, const Pass& pass, double loss_scale);

}  // namespace comparison
