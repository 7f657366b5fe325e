#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace at {
struct RecordFunction;
}  // namespace at
namespace torch::nn {
class Module;
}  // namespace torch::nn

// Members of LibTorch's classes, storage that is copied on write, and texts of errors, for which LibTorch has no public
// functions.
namespace apex::torch_compat {

/// The module in which an archive collects its entries. Entries that were written can be replaced there.
torch::jit::Module& module_in(torch::serialize::OutputArchive& archive);

/// The flag that `Module::train` sets, whatever the module's class makes of `train` and `is_training`.
bool& training_flag(torch::nn::Module& module);

/// The default options of an optimizer; null if it was made without any, or moved from.
std::unique_ptr<torch::optim::OptimizerOptions>& defaults_of(torch::optim::Optimizer& optimizer);
const std::unique_ptr<torch::optim::OptimizerOptions>& defaults_of(const torch::optim::Optimizer& optimizer);

/// Gives the last groups of an optimizer the options that they were added with. From 2.12 on, LibTorch puts the optimizer's own
/// in place of options of a class that it does not know, and completes those of its own classes.
void keep_options(std::vector<torch::optim::OptimizerParamGroup>& groups,
                  const std::vector<torch::optim::OptimizerParamGroup>& added);

/// A storage with the same memory: whoever writes first to one of the two copies the memory before. Null for memory that
/// LibTorch cannot share.
c10::intrusive_ptr<c10::StorageImpl> share_until_written(c10::StorageImpl& storage);
/// Whether the storage still shares its memory with a storage of `share_until_written`.
bool is_shared_until_written(const c10::StorageImpl& storage);

/// The text of an error, of LibTorch's own without the backtrace.
const char* text_of(const std::exception& error);

/// The arguments of the operator call that a callback observes. `RecordFunction::inputs()` asserts, in a program compiled
/// without NDEBUG, on a member that the released LibTorch, compiled with it, never sets: the callback then fails by chance.
c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& function);

/// The operator name of a call that LibTorch reports, such as "aten::conv2d" or "aten::add.Tensor" with an overload.
std::string name_of_call(const at::RecordFunction& function);

}  // namespace apex::torch_compat
