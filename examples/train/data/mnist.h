#pragma once

#include <string>

#include "data/dataset.h"

namespace train {

/// MNIST and its look-alikes in their IDX files (`train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-…`, each plain or
/// .gz) in `dir`: grey images of any one size, labels 0 .. 9. Throws UserError naming the file and what its header says.
DataSplit load_mnist(const std::string& dir);

}  // namespace train
