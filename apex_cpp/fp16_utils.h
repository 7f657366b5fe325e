#pragma once
// apex.fp16_utils for LibTorch: networks in half precision, FP16_Optimizer, manual masters and loss scalers.
#include <apex_cpp/fp16_utils/fp16_optimizer.h>
#include <apex_cpp/fp16_utils/loss_scaler.h>
#include <apex_cpp/fp16_utils/networks.h>
#include <apex_cpp/fp16_utils/param_lists.h>
