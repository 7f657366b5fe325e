#pragma once

#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/amp/optimizer_classes/sharded_optimizer.h>
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/session.h>

// Which gradient of an optimizer an overflow report names. Both wait for the device.
namespace apex::amp::detail {

/// The first one in the model, as backward made it, that is not finite; else the first of the masters, which only unscaling
/// made infinite. Not found() if there is none.
NonfiniteGrad first_nonfinite(const MasterTable& table, const Session& session);
/// The same of gradients that are spread over processes. Collective.
NonfiniteGrad first_nonfinite(const GradShards& shards, const Session& session);

}  // namespace apex::amp::detail
