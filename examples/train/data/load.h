#pragma once

#include "config/config.h"
#include "data/dataset.h"

namespace train {

/// Where a data set's files are looked for: `data.dir` where given; else the set's own folder under $APEX_CPP_DATA, or under
/// $APEX_CPP_CACHE/data, or under ${XDG_CACHE_HOME:-~/.cache}/apex_cpp/data.
std::string data_folder(const DataConfig& config);

/// Reads the set that the config names. Throws UserError, one line.
DataSplit load_data(const DataConfig& config);

}  // namespace train
