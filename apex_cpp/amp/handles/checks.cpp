#include <apex_cpp/amp/handles/checks.h>

#include <torch/optim/lbfgs.h>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/session/earlier_casts.h>
#include <apex_cpp/amp/tensors/grad_sync.h>
#include <apex_cpp/amp/tensors/listed_once.h>
#include <apex_cpp/amp/tensors/low_precision.h>

#include <unordered_map>

namespace apex::amp::detail {
namespace {

void check_float32(const char* kind, const std::string& name, const at::Tensor& tensor, const Session& session) {
  if (!tensor.defined()) return;
  // bfloat16 is this level's own 16-bit type where the level is O4 or O5; elsewhere Apex lets it pass and casts it.
  const auto& properties = session.settings.properties;
  const bool bfloat16_level = properties.cast_model_type == at::kBFloat16 || properties.patch_functions_type == at::kBFloat16;
  const bool low = tensor.scalar_type() == at::kHalf || (bfloat16_level && tensor.scalar_type() == at::kBFloat16);
  TORCH_CHECK(!low || was_cast_by_amp(tensor), "amp::initialize found the ", kind, " '", name, "' in ", tensor.scalar_type(),
              ", expected float32. Pass the model in float32, without calling to(torch::k", tensor.scalar_type(),
              ") on it: amp::initialize casts it as the opt level says.");
}

// Its hooks and buckets are for the parameter as it was when it was wrapped.
void check_not_wrapped(const std::string& name, const at::Tensor& param) {
  TORCH_CHECK(
      !grad_sync_of(param), "amp::initialize found the parameter '", name,
      "' in a DistributedDataParallel. Initialize first, then wrap: auto [net, opt] = amp::initialize(model, optimizer, "
      "…); auto ddp = DistributedDataParallel(net); to initialize again, end the DistributedDataParallel before.");
}

}  // namespace

void check_model(const torch::nn::Module& module, const Session& session) {
  for (const auto& item : module.named_parameters()) check_not_wrapped(item.key(), item.value());
  for (const auto& item : module.named_parameters()) check_float32("parameter", item.key(), item.value(), session);
  for (const auto& item : module.named_buffers()) check_float32("buffer", item.key(), item.value(), session);
}

void check_optimizer(torch::optim::Optimizer& optimizer, const Session& session) {
  TORCH_CHECK(!dynamic_cast<AmpOptimizerBase*>(&optimizer),
              "amp::initialize was given an optimizer that it has returned before. An optimizer can be initialized only once; "
              "make a new one over the model's parameters.");
  for (const auto& group : optimizer.param_groups()) {
    TORCH_CHECK(!group.has_options() || !dynamic_cast<const LeftBehindOptions*>(&group.options()),
                "amp::initialize was given an optimizer whose parameters have moved to the handle that an earlier "
                "amp::initialize, or LARC, has returned for it. Make a new optimizer over the model's parameters.");
  }
  TORCH_CHECK(!(session.has_masters() && dynamic_cast<torch::optim::LBFGS*>(&optimizer)),
              "LBFGS cannot be used with master weights: it calls a closure that runs backward many times a step. Use O0, or "
              "another optimizer.");
  check_one_group_each(optimizer.param_groups(), [&](const at::Tensor& param) { return session.name_of(param); });
  size_t params = 0, known = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& param : group.params()) {
      ++params;
      const bool in_model = session.parameter_names->has(param);
      known += in_model;
      const bool is_cast = in_model && session.settings.properties.cast_model_type && param.is_floating_point();
      const auto dtype = param.scalar_type();
      TORCH_CHECK_TYPE(is_cast || !param.requires_grad() || is_amp_float(dtype),
                       "amp::initialize found the optimizer's parameter ", session.name_of(param), " in ", dtype,
                       "; amp trains float32, float16 and bfloat16 parameters. ",
                       param.is_complex() ? "Leave it to an optimizer of its own that amp::initialize is not given."
                                          : "Convert it to float32 first, or leave it to an optimizer of its own that "
                                            "amp::initialize is not given.");
    }
  }
  TORCH_CHECK(
      params == 0 || known > 0, "amp::initialize was given an optimizer over ", params,
      " parameters, none of which belongs to the models. Construct it from the parameters of the model that you pass "
      "in, Optimizer(model->parameters(), …). Tensors of no model, such as an image or a temperature: register them in a "
      "module that amp::initialize is given, or leave their optimizer out of amp::initialize and use it as before.");
}

void check_one_master_each(const std::vector<torch::optim::Optimizer*>& optimizers, const Session& session) {
  if (!session.has_masters()) return;
  std::unordered_map<const at::TensorImpl*, size_t> owners;
  for (size_t i = 0; i < optimizers.size(); ++i) {
    for (const auto& group : optimizers[i]->param_groups()) {
      for (const auto& param : group.params()) {
        const size_t owner = owners.try_emplace(param.unsafeGetTensorImpl(), i).first->second;
        TORCH_CHECK(owner == i, "amp::initialize found the parameter ", session.name_of(param), " in optimizers ", owner,
                    " and ", i,
                    ", and two master weights of one parameter would write over each other. Give each parameter to one "
                    "optimizer and change its options between steps, initialize again with the second optimizer when its "
                    "turn comes, or use a level without master weights, such as O1 or O4.");
      }
    }
  }
}

void warn_of_float64(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    if (item.value().scalar_type() != at::kDouble) continue;
    TORCH_WARN("amp::initialize found the parameter '", item.key(),
               "' in Double, and amp computes in float32 and 16 bits. Convert the model and its data to float32 first, "
               "model->to(torch::kFloat) and x.to(torch::kFloat), or leave a model that needs float64 out of amp::initialize.");
    return;
  }
}

}  // namespace apex::amp::detail
