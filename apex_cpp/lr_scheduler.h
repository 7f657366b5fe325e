#pragma once

// Python's torch.optim.lr_scheduler for C++: the same names, arguments, rates (also their bits) and rules. A scheduler sets the
// first rates when it is made; call `step()` after each step of the optimizer, also after one that amp skipped. Rates are
// float64 on the host; no scheduler touches a device.
//
// As in Python, the rates of all schedulers except for LambdaLR and OneCycleLR follow from the current rates: a rate that the
// program sets in between is kept and scaled on. Python's argument `last_epoch` is missing: use `load_state_dict`.
#include <apex_cpp/lr_scheduler/combined.h>
#include <apex_cpp/lr_scheduler/one_cycle.h>
#include <apex_cpp/lr_scheduler/scheduler.h>
#include <apex_cpp/lr_scheduler/schedules.h>
