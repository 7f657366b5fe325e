#pragma once
// Apex's C++ functions over the memory of dense tensors, for ported code. Apex: the module apex_C.
#include <apex_cpp/apex_C/flatten.h>
