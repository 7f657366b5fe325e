#pragma once

#include "common/write_whole.h"

namespace train {

using common::check_writable;
using common::folder_of;
using common::write_whole;

}  // namespace train
