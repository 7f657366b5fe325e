#pragma once
// apex.amp for LibTorch: opt levels, master weights and loss scaling. Start at `apex::amp::initialize`.
// Headers of their own: <apex_cpp/amp/statistics.h> (also `watch`), <apex_cpp/amp/doctor.h>, <apex_cpp/amp/level_fallback.h>,
// <apex_cpp/amp/comparison.h> and <apex_cpp/tensorboard/summary_writer.h>.
#include <apex_cpp/amp/autocast.h>
#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/checkpoint.h>
#include <apex_cpp/amp/functional.h>
#include <apex_cpp/amp/grad_scaler.h>
#include <apex_cpp/amp/handles/model.h>
#include <apex_cpp/amp/initialize.h>
#include <apex_cpp/amp/legacy_init.h>
#include <apex_cpp/amp/master_params.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/policy.h>
#include <apex_cpp/amp/scale_loss.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/amp/session.h>
#include <apex_cpp/amp/state_dict.h>
#include <apex_cpp/amp/step_result.h>
#include <apex_cpp/amp/trace.h>
#include <apex_cpp/amp/training_state.h>
