#pragma once
// apex.amp for LibTorch: opt levels, master weights and loss scaling. Start at `apex::amp::initialize`.
#include <apex_cpp/amp/initialize.h>
#include <apex_cpp/amp/loss_scaler.h>
#include <apex_cpp/amp/master_params.h>
#include <apex_cpp/amp/scale_loss.h>
#include <apex_cpp/amp/session.h>
#include <apex_cpp/amp/state_dict.h>
#include <apex_cpp/amp/step_result.h>
