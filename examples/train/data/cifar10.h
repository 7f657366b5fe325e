#pragma once

#include <string>

#include "data/dataset.h"

namespace train {

/// CIFAR-10 in its binary version: `data_batch_1.bin` … `data_batch_5.bin` and `test_batch.bin` in `dir` (or in the folder
/// `cifar-10-batches-bin` that the archive makes there). Throws UserError naming the file.
DataSplit load_cifar10(const std::string& dir);

}  // namespace train
