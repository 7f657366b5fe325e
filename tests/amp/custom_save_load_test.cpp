// Model classes with custom save and load: overrides that write further values, and functions of the same names that take a
// path and hide Module's.
#include <apex_cpp/torch_compat/autograd.h>

#include "tests/amp/every_level.h"
#include "tests/amp/saved.h"
#include "tests/amp/support.h"
#include "tests/examples/scratch.h"

namespace apex::test {
namespace {

using torch::Tensor;

class CustomSaveAndLoad : public AtEveryLevel {};
INSTANTIATE_TEST_SUITE_P(Levels, CustomSaveAndLoad, kEveryLevel, [](const auto& test) { return test.param; });

/// A layer that also saves a number.
struct CountingLayerImpl : torch::nn::Module {
  CountingLayerImpl() : fc(register_module("fc", torch::nn::Linear(6, 6))) {
    table = register_buffer("table", torch::rand({6}));
  }
  Tensor forward(const Tensor& x) { return fc(x) + table; }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::nn::Module::save(archive);
    archive.write("calls", c10::IValue(calls));
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::nn::Module::load(archive);
    c10::IValue value;
    archive.read("calls", value);
    calls = value.toInt();
  }
  torch::nn::Linear fc;
  Tensor table;
  int64_t calls = 0;
};
TORCH_MODULE(CountingLayer);

/// A model with such a layer that also saves its epoch, a copy of its last weight and a 16-bit table.
struct CountingImpl : torch::nn::Module {
  CountingImpl() : layer(register_module("layer", CountingLayer())), last(register_module("last", torch::nn::Linear(6, 3))) {}
  Tensor forward(const Tensor& x) { return last(layer->forward(x)); }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::nn::Module::save(archive);
    archive.write("epoch", torch::tensor(epoch), /*is_buffer=*/true);
    archive.write("rows", last->weight.detach().t(), /*is_buffer=*/true);
    archive.write("half", torch::ones({2}, torch::kHalf), /*is_buffer=*/true);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::nn::Module::load(archive);
    Tensor value;
    archive.read("epoch", value, /*is_buffer=*/true);
    epoch = value.item<int64_t>();
    rows = Tensor();
    archive.read("rows", rows, /*is_buffer=*/true);
  }
  CountingLayer layer;
  torch::nn::Linear last;
  int64_t epoch = 0;
  Tensor rows;
};
TORCH_MODULE(Counting);

/// As of a program that calls torch::save and torch::load alone.
class ProtectedImpl : public torch::nn::Module {
 public:
  Tensor forward(const Tensor& x) { return fc(x); }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 3));
  int64_t epoch = 0;

 protected:
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::nn::Module::save(archive);
    archive.write("epoch", c10::IValue(epoch));
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::nn::Module::load(archive);
    c10::IValue value;
    archive.read("epoch", value);
    epoch = value.toInt();
  }
};
TORCH_MODULE(Protected);

TEST_P(CustomSaveAndLoad, MayBeProtected) {
  Protected model, plain;
  auto net = amp::initialize(model, level(), quiet());
  net->epoch = 7;
  restore(plain, saved(net));
  EXPECT_EQ(plain->epoch, 7);
  plain->epoch = 9;
  restore(net, saved(plain));
  EXPECT_EQ(net->epoch, 9);
}

std::vector<Tensor> float32_tensors_of(const torch::nn::Module& module) {
  std::vector<Tensor> tensors;
  for (const auto& p : module.parameters()) tensors.push_back(p.detach().to(torch::kFloat));
  for (const auto& b : module.buffers()) tensors.push_back(b.to(torch::kFloat));
  return tensors;
}
void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

TEST_P(CustomSaveAndLoad, OverridesWriteFilesForProgramsWithoutAmp) {
  Counting model;
  auto net = amp::initialize(model, level(), quiet());
  net->epoch = 7;
  net->layer->calls = 9;
  const auto dtype = net->last->weight.scalar_type();
  for (const auto& file : {saved(net), saved(model)}) {
    Counting plain;
    restore(plain, file);
    EXPECT_EQ(plain->epoch, 7);
    EXPECT_EQ(plain->layer->calls, 9);
    for (const auto& p : plain->parameters()) EXPECT_EQ(p.scalar_type(), torch::kFloat);
    expect_equal(float32_tensors_of(*plain), float32_tensors_of(*net));
    EXPECT_EQ(plain->rows.scalar_type(), torch::kFloat) << "a view of a weight";
    EXPECT_TRUE(torch::equal(plain->rows, plain->last->weight.t()));

    std::istringstream stream(file);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    Tensor half;
    archive.read("half", half, /*is_buffer=*/true);
    EXPECT_EQ(half.scalar_type(), torch::kHalf) << "no weight of the model";
  }
  EXPECT_EQ(net->last->weight.scalar_type(), dtype) << "saving leaves the model alone";
}

TEST_P(CustomSaveAndLoad, OverridesReadFilesOfProgramsWithoutAmpIntoWeightsAndMasters) {
  Counting plain, model;
  plain->epoch = 7;
  plain->layer->calls = 9;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
  opt.zero_grad();
  std::vector<torch::Dtype> dtypes;
  std::vector<void*> memory;
  for (const auto& p : net->parameters()) dtypes.push_back(p.scalar_type());
  for (const auto& p : net->parameters()) memory.push_back(p.data_ptr());
  std::vector<torch_compat::NodePtr> accumulators;
  for (const auto& p : net->parameters()) accumulators.push_back(torch_compat::grad_accumulator(p));
  restore(net, saved(plain));
  EXPECT_EQ(net->epoch, 7);
  EXPECT_EQ(net->layer->calls, 9);
  const auto expected = plain->parameters(), weights = net->parameters(), masters = amp::master_params(opt);
  ASSERT_EQ(masters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(weights[i].scalar_type(), dtypes[i]);
    EXPECT_EQ(weights[i].data_ptr(), memory[i]) << "graphs and plans have its address";
    EXPECT_EQ(torch_compat::existing_grad_accumulator(weights[i]), accumulators[i]) << "hooks are on it";
    EXPECT_TRUE(torch::equal(weights[i], expected[i].to(dtypes[i])));
    const bool has_master = masters[i].scalar_type() == torch::kFloat;
    EXPECT_TRUE(torch::equal(masters[i], has_master ? expected[i] : weights[i]));
  }
  EXPECT_TRUE(torch::equal(net->layer->table, plain->layer->table.to(net->layer->table.scalar_type())));
}

TEST_P(CustomSaveAndLoad, FilesWithMissingEntriesOrOtherShapesChangeNoWeight) {
  struct NarrowImpl : torch::nn::Module {
    NarrowImpl() : layer(register_module("layer", CountingLayer())), last(register_module("last", torch::nn::Linear(6, 2))) {}
    CountingLayer layer;
    torch::nn::Linear last;
  };
  Counting model;
  auto net = amp::initialize(model, level(), quiet());
  const auto before = bytes_of(*net);
  const std::string narrow = saved(std::make_shared<NarrowImpl>());
  EXPECT_NE(message_of([&] { restore(net, narrow); }), "");
  EXPECT_EQ(bytes_of(*net), before);
  const std::string none = saved(torch::nn::Linear(6, 3));
  EXPECT_TRUE(contains(message_of([&] { restore(net, none); }), "The checkpoint has no module 'layer'"));
  EXPECT_EQ(bytes_of(*net), before);
  EXPECT_EQ(net->forward(features()).size(1), 3);
}

/// save and load take a path here.
struct OwnPathImpl : torch::nn::Module {
  OwnPathImpl() : fc(register_module("fc", torch::nn::Linear(6, 3))) {}
  Tensor forward(const Tensor& x) { return fc(x); }
  bool save(const std::string& path) const {
    torch::serialize::OutputArchive archive;
    torch::nn::Module::save(archive);
    archive.save_to(path);
    return true;
  }
  void load(const std::string& path) {
    torch::serialize::InputArchive archive;
    archive.load_from(path);
    torch::nn::Module::load(archive);
  }
  torch::nn::Linear fc;
};
TORCH_MODULE(OwnPath);

TEST_P(CustomSaveAndLoad, FunctionsThatTakeAPathDoNotBreakTorchSave) {
  OwnPath plain, model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
  opt.zero_grad();
  restore(net, saved(std::shared_ptr<torch::nn::Module>(plain.ptr())));
  EXPECT_TRUE(torch::equal(amp::master_params(opt)[0], plain->fc->weight.to(amp::master_params(opt)[0].scalar_type())));
  OwnPath read_back;
  std::shared_ptr<torch::nn::Module> as_module = read_back.ptr();
  restore(as_module, saved(net));
  expect_equal(float32_tensors_of(*read_back), float32_tensors_of(*net));
}

TEST_P(CustomSaveAndLoad, FunctionsThatTakeAPathSeeFloat32Weights) {
  OwnPath plain, model, read_back;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet());
  opt.zero_grad();
  const Scratch folder;
  const std::string path = folder / "own.pt";
  plain->save(path);
  net->load(path);
  const auto master = amp::master_params(opt)[0];
  EXPECT_TRUE(torch::equal(master, plain->fc->weight.to(master.scalar_type())));
  EXPECT_TRUE(torch::equal(net->fc->weight, plain->fc->weight.to(net->fc->weight.scalar_type())));
  EXPECT_TRUE(net->save(path));
  read_back->load(path);
  expect_equal(float32_tensors_of(*read_back), float32_tensors_of(*net));
}

}  // namespace
}  // namespace apex::test
