#pragma once

#include "tests/oracle/reading/case_file.h"
#include "tests/oracle/verdict/report.h"

namespace oracle {

// Plays a case of kind multi_tensor: calls of the kernels alone, on lists of tensors.
void play_multi_tensor_case(const CaseFile& case_file, Report& report);

}  // namespace oracle
