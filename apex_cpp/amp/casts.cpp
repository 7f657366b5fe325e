#include <apex_cpp/amp/casts.h>

#include <apex_cpp/amp/casts/operator_slot.h>

namespace apex::amp {
namespace {

using detail::CastPolicy;

void set_user_policy(const std::string& op, CastPolicy policy) {
  for (auto* slot : detail::slots_named(op)) slot->user_policy.store(policy, std::memory_order_relaxed);
}

}  // namespace

void register_half_function(const std::string& op) { set_user_policy(op, CastPolicy::half); }
void register_float_function(const std::string& op) { set_user_policy(op, CastPolicy::float32); }
void register_promote_function(const std::string& op) { set_user_policy(op, CastPolicy::promote); }
void unregister_function(const std::string& op) { set_user_policy(op, CastPolicy::none); }

}  // namespace apex::amp
