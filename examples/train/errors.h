#pragma once

#include "common/user_error.h"

namespace train {

using common::UserError;

}  // namespace train
