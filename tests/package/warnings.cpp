// Headers that users include must not warn where their project asks for more warnings than this one.
#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/multi_tensor_apply/metadata.h>
#include <apex_cpp/optimizers/fused_adam.h>

template class apex::amp::detail::ForwardingOptions<apex::optimizers::FusedAdamOptions>;
template struct apex::amp_C::TensorListMetadata<2>;
