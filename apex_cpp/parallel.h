#pragma once
// apex.parallel for LibTorch.
#include <apex_cpp/parallel/larc.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/processes/process_group.h>
