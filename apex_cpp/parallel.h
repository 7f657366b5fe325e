#pragma once
// apex.parallel for LibTorch.
#include <apex_cpp/apex_C/flatten.h>
#include <apex_cpp/parallel/convert_syncbn_model.h>
#include <apex_cpp/parallel/distributed_data_parallel.h>
#include <apex_cpp/parallel/distributed_fused_adam.h>
#include <apex_cpp/parallel/larc.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/processes/flat_dist_call.h>
#include <apex_cpp/parallel/processes/process_group.h>
#include <apex_cpp/parallel/reducer.h>
#include <apex_cpp/parallel/share_overflow.h>
#include <apex_cpp/parallel/sync_batch_norm.h>
