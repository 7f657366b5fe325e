// Submodules that are saved and loaded on their own, and model classes with custom copy constructors or destructors.
#include <functional>
#include <sstream>
#include <thread>

#include "tests/amp/every_level.h"
#include "tests/amp/saved.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using torch::Tensor;

/// An Mlp in the middle of its training.
class Submodules : public AtEveryLevel {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    auto sgd = std::make_unique<torch::optim::SGD>(model->parameters(), 0.1);
    std::tie(net, opt) = amp::initialize(model, sgd, level(), quiet().loss_scale(8.0));
    step(1);
  }
  void step(float factor) {
    opt->zero_grad();
    { amp::scale_loss(net->forward(features()).to(torch::kFloat).square().sum() * factor, opt).backward(); }
    opt->step();
  }
  Mlp model;
  amp::Model<Mlp> net{nullptr};
  std::unique_ptr<torch::optim::SGD> opt;
  /// A layer of fc1's shape, saved by a program without amp.
  torch::nn::Linear earlier{model->fc1->options};
  std::string file = saved(earlier);

  /// fc1 has the values of `earlier`, rounded once. So have the optimizer's masters: a step by 0 writes the same values again.
  void expect_loaded(const char* how) {
    const auto stepped = amp::master_params(*opt);
    for (int i = 0; i < 2; ++i) {
      for (const bool bias : {false, true}) {
        const Tensor& here = bias ? model->fc1->bias : model->fc1->weight;
        const Tensor& expected = bias ? earlier->bias : earlier->weight;
        EXPECT_TRUE(torch::equal(here, expected.to(here.scalar_type()))) << how << ", steps: " << i;
        EXPECT_TRUE(torch::equal(stepped[bias], expected.to(stepped[bias].scalar_type()))) << how << ", steps: " << i;
      }
      step(0);
    }
  }
  void spoil() {
    const torch::NoGradGuard no_grad;
    model->fc1->weight.fill_(9);
    model->fc1->bias.fill_(9);
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, Submodules, kEveryLevel, [](const auto& test) { return test.param; });

TEST_P(Submodules, AreSavedInFloat32) {
  const std::vector<std::string> files{saved(net->fc1), saved(model->fc1), saved(net->fc1.ptr())};
  for (const auto& each : files) {
    torch::nn::Linear plain(model->fc1->options);
    restore(plain, each);
    EXPECT_EQ(plain->weight.scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(plain->weight, model->fc1->weight.to(torch::kFloat)));
    EXPECT_TRUE(torch::equal(plain->bias, model->fc1->bias.to(torch::kFloat)));
  }
}

TEST_P(Submodules, OfAClonedModelAreSavedAndLoadedInFloat32) {
  Replicated original;
  auto own = amp::initialize(original, level(), quiet());
  const torch::nn::Linear from(original->fc->options);
  for (const std::optional<torch::Device>& device : {std::optional<torch::Device>(), {torch::kCPU}}) {
    const auto copy = std::dynamic_pointer_cast<ReplicatedImpl>(own->clone(device));
    restore(copy->fc, saved(from));
    EXPECT_EQ(copy->fc->weight.scalar_type(), original->fc->weight.scalar_type());
    EXPECT_TRUE(torch::equal(copy->fc->weight, from->weight.to(copy->fc->weight.scalar_type())));
    torch::nn::Linear plain(original->fc->options);
    restore(plain, saved(copy->fc));
    EXPECT_EQ(plain->weight.scalar_type(), torch::kFloat);
  }
}

struct EncoderImpl : torch::nn::Module {
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 4));
  Tensor forward(const Tensor& x) { return fc(x); }
};
AMP_MODULE(Encoder);
struct WholeImpl : torch::nn::Module {
  Encoder encoder = register_module("encoder", Encoder());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 2));
  Tensor forward(const Tensor& x) { return head(encoder->forward(x)); }
};
TORCH_MODULE(Whole);

// Its class could be a model of its own. Here it is a part of one.
TEST_P(Submodules, OfAnAmpModuleClassAreSavedInFloat32) {
  Whole whole;
  auto own = amp::initialize(whole, level(), quiet());
  Encoder plain;
  restore(plain, saved(own->encoder));
  EXPECT_EQ(plain->fc->weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(plain->fc->weight, own->encoder->fc->weight.to(torch::kFloat)));
}

TEST_P(Submodules, AreLoadedFromFloat32) {
  const std::vector<std::pair<const char*, std::function<void()>>> ways{
      {"by the holder", [&] { restore(net->fc1, file); }},
      {"by the pointer", [&] { restore(net->fc1.ptr(), file); }},
      {"by a base class",
       [&] {
         std::shared_ptr<torch::nn::Module> base = model->fc1.ptr();
         restore(base, file);
       }},
      {"by load()",
       [&] {
         std::istringstream stream(file);
         torch::serialize::InputArchive archive;
         archive.load_from(stream);
         model->fc1->load(archive);
       }},
      {"tensor by tensor",
       [&] {
         std::istringstream stream(file);
         torch::serialize::InputArchive archive;
         archive.load_from(stream);
         archive.read("weight", net->fc1->weight);
         archive.read("bias", net->fc1->bias);
       }},
      {"on a thread without casts", [&] { std::thread([&] { restore(net->fc1, file); }).join(); }}};
  for (const auto& [how, load] : ways) {
    spoil();
    load();
    expect_loaded(how);
  }
}

TEST_P(Submodules, ALayerThatIsAddedLaterIsSavedAndLoadedInFloat32) {
  const auto type = model->fc1->weight.scalar_type();
  net->fc1 = net->replace_module("fc1", torch::nn::Linear(earlier->options));
  net->fc1->to(type);
  opt->add_param_group(torch::optim::OptimizerParamGroup(net->fc1->parameters()));
  step(1);
  torch::nn::Linear plain(earlier->options);
  restore(plain, saved(net->fc1));
  EXPECT_TRUE(torch::equal(plain->weight, net->fc1->weight.to(torch::kFloat)));
  restore(net->fc1, file);
  EXPECT_TRUE(torch::equal(net->fc1->weight, earlier->weight.to(type)));
  step(0);
  EXPECT_TRUE(torch::equal(net->fc1->weight, earlier->weight.to(type))) << "the master has the values, too";
  torch::optim::SGD again(net->parameters(), 0.1);
  EXPECT_EQ(message_of([&] { (void)amp::initialize(net, again, level(), quiet()); }), "");
}

// A part of it is frozen, and a buffer is the program's own in 16 bits.
TEST_P(Submodules, ALayerWithOtherTensorsThatIsAddedLaterIsLoadedAsItWasSaved) {
  const auto type = model->fc1->weight.scalar_type();
  auto added = net->register_module("added", torch::nn::Linear(4, 4));
  added->register_buffer("mean", torch::rand({4}));
  added->to(type);
  added->bias.set_requires_grad(false);
  opt->add_param_group(torch::optim::OptimizerParamGroup(added->parameters()));
  step(1);
  const std::string file_of_added = saved(added), before = bytes_of(*added);
  {
    const torch::NoGradGuard no_grad;
    for (const Tensor& each : added->parameters()) each.zero_();
    for (const Tensor& each : added->buffers()) each.zero_();
  }
  restore(added, file_of_added);
  EXPECT_EQ(bytes_of(*added), before);
}

TEST_P(Submodules, AFileOfAnotherShapeIsNotLoaded) {
  if (model->fc1->weight.scalar_type() == torch::kFloat) return;  // LibTorch takes the file's shape over
  torch::nn::Linear other(7, 5);
  const std::string wrong = saved(other), before = bytes_of(*model);
  EXPECT_TRUE(contains(message_of([&] { restore(net->fc1, wrong); }), "'fc1.weight'"));
  EXPECT_EQ(bytes_of(*model), before);
}

struct ParentImpl : torch::nn::Module {
  ParentImpl() { part = register_module("part", Mlp()); }
  Mlp part{nullptr};
};
TORCH_MODULE(Parent);

/// Neither the parent nor the copy of the holder has the handle's module.
TEST_P(Submodules, ParentsAndCopiesAreSavedAndLoadedInFloat32) {
  const CaughtWarnings warnings;
  Parent parent, other;
  Mlp copy = parent->part;
  auto part = amp::initialize(parent->part, level(), quiet());
  const auto weight = [&] { return part->fc1->weight.to(torch::kFloat); };
  Parent plain_parent;
  restore(plain_parent, saved(parent));
  EXPECT_TRUE(torch::equal(plain_parent->part->fc1->weight, weight()));
  Mlp plain_copy;
  restore(plain_copy, saved(copy));
  EXPECT_TRUE(torch::equal(plain_copy->fc1->weight, weight()));
  restore(parent, saved(other));
  const Tensor& loaded = other->part->fc1->weight;
  EXPECT_TRUE(torch::equal(weight(), loaded.to(part->fc1->weight.scalar_type()).to(torch::kFloat)));
}

TEST_P(Submodules, UninitializedModelsAreSavedAndLoadedAsWithoutAmp) {
  torch::nn::Linear half(6, 3), read(6, 3);
  half->to(torch::kHalf);
  read->to(torch::kHalf);
  restore(read, saved(half));
  EXPECT_EQ(read->weight.scalar_type(), torch::kHalf);
  EXPECT_TRUE(torch::equal(read->weight, half->weight));
  torch::nn::Linear empty(nullptr);
  EXPECT_TRUE(contains(message_of([&] { saved(empty); }), "empty"));
}

// ---- classes with custom copy constructors or destructors ----

class CustomCopyConstructors : public AtEveryLevel {};
INSTANTIATE_TEST_SUITE_P(Levels, CustomCopyConstructors, kEveryLevel, [](const auto& test) { return test.param; });

/// A copy has its own weights.
struct DeepImpl : torch::nn::Module {
  DeepImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  DeepImpl(const DeepImpl& other) : torch::nn::Module(), fc(register_module("fc", torch::nn::Linear(other.fc->options))) {}
  Tensor forward(Tensor x) { return fc(x); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Deep);
TORCH_MODULE_IMPL(PatchedDeep, amp::Amped<DeepImpl>);  // AMP_MODULE under another name

/// A copy has nothing registered, since the copy constructor does not copy the base.
struct BaselessImpl : torch::nn::Module {
  BaselessImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  BaselessImpl(const BaselessImpl& other) : torch::nn::Module(), fc(other.fc) {}
  Tensor forward(Tensor x) { return fc(x); }
  torch::nn::Linear fc{nullptr};
};

/// A copy shares everything.
struct SharingImpl : torch::nn::Module {
  SharingImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  SharingImpl(const SharingImpl& other) : torch::nn::Module(other), fc(other.fc) {}
  Tensor forward(Tensor x) { return fc(x); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Sharing);

TEST_P(CustomCopyConstructors, MustShareParameters) {
  for (const bool enabled : {true, false}) {
    Deep model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const auto options = quiet().enabled(enabled);
    const auto error = message_of([&] { (void)amp::initialize(model, sgd, level(), options); });
    EXPECT_TRUE(contains(error, "does not share 'fc.weight'"));
    EXPECT_TRUE(contains(error, "AMP_MODULE"));
    EXPECT_EQ(model->fc->weight.scalar_type(), torch::kFloat) << "nothing is changed";
    EXPECT_EQ(sgd.parameters().size(), 2u);
    BaselessImpl baseless;
    const auto of_struct = message_of([&] { (void)amp::initialize(baseless, level(), options); });
    EXPECT_TRUE(contains(of_struct, "does not share 'fc.weight'"));
  }
}

template <class Net>
void expect_trains(const char* level) {
  Net model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, level, quiet().loss_scale(8.0));
  const Tensor before = net->forward(features()).to(torch::kFloat);
  { amp::scale_loss(net->forward(features()).to(torch::kFloat).sum(), opt).backward(); }
  opt.step();
  EXPECT_FALSE(torch::equal(net->forward(features()).to(torch::kFloat), before));
}

TEST_P(CustomCopyConstructors, TrainIfTheyShareParametersOrNoCopyIsMade) {
  expect_trains<Sharing>(level());
  expect_trains<PatchedDeep>(level());
}

struct DestroyedImpl : torch::nn::Module {
  DestroyedImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  ~DestroyedImpl() override { ++destroyed; }
  Tensor forward(Tensor x) { return fc(x); }
  torch::nn::Linear fc{nullptr};
  static inline int destroyed = 0;
};
TORCH_MODULE(Destroyed);
TORCH_MODULE_IMPL(PatchedDestroyed, amp::Amped<DestroyedImpl>);

template <class Net>
std::string warnings_of(const char* level) {
  CaughtWarnings warnings;
  {
    Net model;
    auto net = amp::initialize(model, level, quiet());
  }
  return warnings.text;
}

TEST_P(CustomCopyConstructors, ADestructorCausesAWarning) {
  EXPECT_TRUE(contains(warnings_of<Destroyed>(level()), "DestroyedImpl, which declares a destructor"));
  EXPECT_EQ(std::exchange(DestroyedImpl::destroyed, 0), 2) << "the model and its copy";
  EXPECT_EQ(warnings_of<PatchedDestroyed>(level()), "");
  EXPECT_EQ(std::exchange(DestroyedImpl::destroyed, 0), 1);
  EXPECT_EQ(warnings_of<Mlp>(level()), "");
}

}  // namespace
}  // namespace apex::test
