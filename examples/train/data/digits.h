#pragma once

#include <string>

#include "data/dataset.h"

namespace train {

/// The handwritten digits that scikit-learn ships: `dir`/digits.csv or digits.csv.gz, rows of 64 grey values 0 .. 16 and a
/// label, 8x8 images. Read in one piece; a fifth of each class is the test set. Throws UserError with file and line.
DataSplit load_digits(const std::string& dir);

}  // namespace train
