#pragma once
// apex.parallel for LibTorch: training on several processes, and LARC.
#include <apex_cpp/apex_C.h>
#include <apex_cpp/parallel/distributed_data_parallel.h>
#include <apex_cpp/parallel/distributed_fused_adam.h>
#include <apex_cpp/parallel/larc.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/processes/process_group.h>
#include <apex_cpp/parallel/reducer.h>
#include <apex_cpp/parallel/sync_batch_norm.h>
