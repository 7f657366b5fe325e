// Programs that must fail to compile with one sentence that names the remedy: the comment before each case.
#include <apex_cpp/amp.h>
#include <apex_cpp/parallel.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>

namespace amp = apex::amp;
namespace nn = torch::nn;

namespace {

// amp::initialize takes the model itself: write `model`, not `&model`.
void address_of_a_holder(nn::Linear& model) { (void)amp::initialize(&model, "O2"); }

// amp::initialize takes the model itself: write `model`, not `&model`.
void address_of_a_module(nn::LinearImpl& model) { (void)amp::initialize(&model, "O2"); }

// amp::initialize cannot see the class inside a torch::nn::AnyModule: pass the module, then make the AnyModule from what
// amp::initialize returns.
void any_module(nn::AnyModule& model) { (void)amp::initialize(model, "O2"); }

// amp::initialize needs the class whose forward is to be cast, not torch::nn::Module: pass the model by its own class.
void pointer_to_module(std::shared_ptr<nn::Module>& model) { (void)amp::initialize(model, "O2"); }

// amp::initialize needs the class whose forward is to be cast, not torch::nn::Module: pass the model by its own class.
void reference_to_module(nn::Module& model) { (void)amp::initialize(model, "O2"); }

// amp::initialize takes a TORCH_MODULE holder, a std::shared_ptr to a module, or a module; several as std::tie(a, b) or a
// vector.
void unique_pointer(std::unique_ptr<nn::LinearImpl>& model) { (void)amp::initialize(model, "O2"); }

struct FinalImpl final : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(Final);

// amp::initialize derives from the module's class: remove `final` from it.
void final_class(Final& model) { (void)amp::initialize(model, "O2"); }

struct OwnerImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
  std::unique_ptr<int> owned;
};
TORCH_MODULE(Owner);

// amp::initialize copies the module (sharing its parameters), and this class cannot be copied: declare it with
// AMP_MODULE(Net) in place of TORCH_MODULE(Net), or hold it as a std::shared_ptr<amp::Amped<NetImpl>>.
void module_that_cannot_be_copied(Owner& model) { (void)amp::initialize(model, "O2"); }

struct Batch {
  at::Tensor image;
  Batch to(at::ScalarType dtype) const { return {image.to(dtype)}; }
};
struct BatchWriterImpl : nn::Module {
  at::Tensor forward(Batch& batch) { return batch.image = batch.image + 1; }
};
TORCH_MODULE(BatchWriter);

// forward of this model takes a type with a to(dtype) of its own by T&, and amp cannot write its cast copy back: take it as
// const T& or by value, and return what forward changes.
void forward_that_writes_to_a_batch(BatchWriter& model) { (void)amp::initialize(model, "O2"); }

struct PyramidImpl : nn::Module {
  at::TensorList forward(const at::Tensor& x) {
    maps = {x, x};
    return maps;
  }
  std::vector<at::Tensor> maps;
};
TORCH_MODULE(Pyramid);

// This forward returns an at::TensorList, which would refer to tensors that amp's casts have made: return a
// std::vector<torch::Tensor>.
void forward_that_returns_a_reference(Pyramid& model) { (void)amp::initialize(model, "O2")->forward(at::Tensor()); }

// A function that amp casts gets casts of its tensors, to which a torch::Tensor& does not bind: take tensors by value or const
// reference, and return the result.
void function_that_writes_to_its_argument(at::Tensor& out) {
  amp::float_function([](const at::Tensor& x, at::Tensor& y) { y.copy_(x); })(out, out);
}

// amp::initialize comes before DistributedDataParallel: initialize the model itself, then wrap what amp::initialize returned.
void wrapped_model(apex::parallel::DistributedDataParallel<nn::Linear>& ddp) { (void)amp::initialize(ddp, "O2"); }

struct OwnOptimizer : torch::optim::Optimizer {
  using torch::optim::Optimizer::Optimizer;
  at::Tensor step(LossClosure = nullptr) override { return {}; }
};

// amp::initialize does not know the options type of this optimizer: declare `MyOptions options_of(const MyOptimizer*);` in the
// optimizer's namespace
void optimizer_without_options_of(nn::Linear& model, OwnOptimizer& optimizer) { (void)amp::initialize(model, optimizer, "O2"); }

// LARC adapts the gradients of whole parameters, which a sharded optimizer does not have: wrap FusedAdam instead
void larc_around_a_sharded_optimizer(apex::parallel::DistributedFusedAdam& adam) { apex::parallel::LARC larc(adam); }

}  // namespace
