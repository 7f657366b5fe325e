#pragma once

// Fused optimizers under Apex's names, all of them torch::optim::Optimizer.
#include <apex_cpp/optimizers/fused_adagrad.h>
#include <apex_cpp/optimizers/fused_adam.h>
#include <apex_cpp/optimizers/fused_lamb.h>
#include <apex_cpp/optimizers/fused_lars.h>
#include <apex_cpp/optimizers/fused_lion.h>
#include <apex_cpp/optimizers/fused_mixed_precision_lamb.h>
#include <apex_cpp/optimizers/fused_novograd.h>
#include <apex_cpp/optimizers/fused_schedule_free_adamw.h>
#include <apex_cpp/optimizers/fused_sgd.h>
#include <apex_cpp/optimizers/muon.h>
