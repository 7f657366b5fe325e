// A model's weights in safetensors files: FP32 by name, loaded at any level and into the masters (MODEL-08).
#include <apex_cpp/amp/checkpoint/safetensors.h>

#include <set>

#include "tests/amp/optimizers.h"
#include "tests/errors.h"
#include "tests/examples/scratch.h"

namespace apex::test {
namespace {

using amp::detail::read_safetensors;

class Weights : public AmpTest {
 protected:
  std::string path() const { return scratch_ / "model.safetensors"; }
  std::map<std::string, torch::Tensor> written() const {
    const auto file = read_safetensors(path());
    return {file.tensors.begin(), file.tensors.end()};
  }
  Scratch scratch_;
};

std::map<std::string, torch::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value().detach().clone();
  return tensors;
}

TEST_F(Weights, AreSavedInFloat32UnderTheModelsNamesAtEveryLevel) {
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    SCOPED_TRACE(level);
    ConvNet model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    amp::save_safetensors(path(), net);
    const auto expected = tensors_of(*model);
    const auto tensors = written();
    ASSERT_EQ(tensors.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      const auto dtype = tensor.is_floating_point() ? torch::kFloat : tensor.scalar_type();
      EXPECT_EQ(tensors.at(name).scalar_type(), dtype) << name;
      EXPECT_TRUE(tensors.at(name).equal(tensor.to(dtype))) << name;
    }
    EXPECT_EQ(read_safetensors(path()).metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
    amp::reset();
  }
}

TEST_F(Weights, LoadAtEveryLevelFromEveryLevel) {
  for (const char* from : {"O0", "O2", "O3", "O5"}) {
    ConvNet source;
    torch::optim::SGD source_optimizer(source->parameters(), 0.1);
    auto [source_net, source_opt] = amp::initialize(source, source_optimizer, from, quiet());
    amp::save_safetensors(path(), source_net);
    const auto saved = written();
    for (const char* to : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
      SCOPED_TRACE(std::string(from) + " to " + to);
      ConvNet model;
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      auto [net, opt] = amp::initialize(model, optimizer, to, quiet());
      const auto dtypes = tensors_of(*model);
      amp::load_safetensors(path(), net);
      for (const auto& [name, tensor] : tensors_of(*model)) {
        EXPECT_EQ(tensor.scalar_type(), dtypes.at(name).scalar_type()) << name;
        EXPECT_TRUE(tensor.equal(saved.at(name).to(tensor.scalar_type()))) << name;
      }
    }
  }
}

// Otherwise the next step would restore the weights from before the load.
TEST_F(Weights, LoadingUpdatesTheMasters) {
  ConvNet trained;
  for (auto& parameter : trained->parameters()) parameter.data().uniform_(-1, 1);
  amp::save_safetensors(path(), trained);
  ConvNet model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  train_step(net, opt, images());
  amp::load_safetensors(path(), net);
  const auto parameters = trained->parameters();
  const auto masters = amp::master_params(opt);
  ASSERT_EQ(masters.size(), parameters.size());
  for (size_t i = 0; i < masters.size(); ++i) EXPECT_TRUE(masters[i].equal(parameters[i])) << i;
  // The original model shares the parameters, so loading through it is equivalent.
  for (const auto& master : masters) master.detach().zero_();
  amp::load_safetensors(path(), *model);
  for (size_t i = 0; i < masters.size(); ++i) EXPECT_TRUE(masters[i].equal(parameters[i])) << i;
}

// Masters are made at the first use of the optimizer; of rounded weights they would lack what the file has.
TEST_F(Weights, LoadingBeforeTheFirstStepGivesTheMastersWhatTheFileHas) {
  ConvNet trained;
  for (auto& parameter : trained->parameters()) parameter.data().uniform_(-1, 1);
  const std::string checkpoint = scratch_ / "model.ckpt", archive = scratch_ / "model.pt", part = scratch_ / "fc.pt",
                    part_checkpoint = scratch_ / "fc.ckpt";
  amp::save_safetensors(path(), trained);
  amp::save_checkpoint(checkpoint, trained);
  torch::save(trained, archive);
  torch::save(trained->fc, part);
  amp::save_checkpoint(part_checkpoint, trained->fc);
  using Net = decltype(amp::initialize(trained, "O2"));
  const std::vector<std::pair<std::string, std::function<void(Net&)>>> loads = {
      {"safetensors", [&](Net& net) { amp::load_safetensors(path(), net); }},
      {"checkpoint", [&](Net& net) { amp::load_checkpoint(checkpoint, net); }},
      {"archive", [&](Net& net) { torch::load(net, archive); }},
      {"part", [&](Net& net) { torch::load(net->fc, part); }},
      {"checkpoint of a part", [&](Net& net) { amp::load_checkpoint(part_checkpoint, net->fc); }}};
  for (const char* level : {"O2", "O5", "O6"}) {
    for (const auto& [name, load] : loads) {
      SCOPED_TRACE(std::string(level) + " " + name);
      ConvNet model;
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
      load(net);
      amp::scale_loss(net->forward(images()).sum(), opt).backward();
      EXPECT_TRUE(amp::master_params(opt).at(4).equal(trained->fc->weight));
      amp::reset();
    }
  }
}

TEST_F(Weights, HaveTheMastersOfAnEarlierSession) {
  torch::nn::Linear plain(4, 4), model(4, 4), other(4, 4);
  torch::nn::Linear original = model;                                           // stays without a session
  for (auto& parameter : plain->parameters()) parameter.data().fill_(1.0001f);  // no 16-bit value
  amp::save_safetensors(path(), plain);
  torch::optim::SGD optimizer(model->parameters(), 0.1), of_other(other->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  const auto later = amp::initialize(other, of_other, "O5", quiet());
  amp::load_safetensors(path(), *original);
  EXPECT_TRUE(amp::master_params(opt)[0].equal(plain->weight));
  amp::save_safetensors(path(), *original, amp::SaveSafetensorsOptions().masters(true));
  EXPECT_TRUE(written().at("weight").equal(plain->weight));
}

struct TunedLinearImpl : torch::nn::Module {
  explicit TunedLinearImpl(const torch::nn::Linear& part) : encoder(register_module("encoder", part)) {}
  torch::Tensor forward(const torch::Tensor& x) { return head(encoder(x)); }
  torch::nn::Linear encoder, head = register_module("head", torch::nn::Linear(4, 2));
};
TORCH_MODULE(TunedLinear);

// A later call takes the part into a larger model, and trains other weights of it.
TEST_F(Weights, HaveTheMastersOfAPartsOptimizerThatStaysInUse) {
  torch::nn::Linear plain(4, 4), encoder(4, 4);
  for (auto& parameter : plain->parameters()) parameter.data().fill_(1.0001f);
  amp::save_safetensors(path(), plain);
  torch::optim::SGD of_encoder(encoder->parameters(), 0.1);
  auto [enc, enc_opt] = amp::initialize(encoder, of_encoder, "O2", quiet());
  TunedLinear model(encoder);
  torch::optim::SGD of_head(model->head->parameters(), 0.1);
  auto [net, head_opt] = amp::initialize(model, of_head, "O2", quiet());
  amp::load_safetensors(path(), enc);
  enc_opt.zero_grad();
  EXPECT_TRUE(amp::master_params(enc_opt)[0].equal(plain->weight));
  amp::save_safetensors(path(), enc, amp::SaveSafetensorsOptions().masters(true));
  EXPECT_TRUE(written().at("weight").equal(plain->weight));
}

TEST_F(Weights, OfAWholeModelReachTheMastersOfAPartThatWasInitializedLater) {
  const std::string archive = scratch_ / "model.pt";
  torch::nn::Linear of_trained(4, 4), of_model(4, 4);
  TunedLinear trained(of_trained), model(of_model);
  for (auto& parameter : trained->parameters()) parameter.data().fill_(1.0001f);
  torch::save(trained, archive);
  auto net = amp::initialize(model, "O2", quiet());
  torch::optim::SGD optimizer(net->encoder->parameters(), 0.1);
  auto [part, opt] = amp::initialize(net->encoder, optimizer, "O2", quiet());
  torch::load(net, archive);
  opt.zero_grad();
  EXPECT_TRUE(amp::master_params(opt)[0].equal(trained->encoder->weight));
}

TEST_F(Weights, OfAModelThatHasMovedToALevelWithoutMastersAreItsOwn) {
  torch::nn::Linear model(4, 4);
  torch::optim::SGD first(model->parameters(), 0.1), second(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, first, "O2", quiet().loss_scale(8.0));
  amp::scale_loss(net->forward(torch::ones({2, 4})).square().sum(), opt).backward();
  opt.step();
  auto [tuned, tuned_opt] = amp::initialize(model, second, "O1", quiet());
  amp::save_safetensors(path(), tuned, amp::SaveSafetensorsOptions().masters(true));
  EXPECT_TRUE(written().at("weight").equal(model->weight));
}

// A new head. The samples of the weight's values do not show the write, and no value of a weight on a GPU would.
TEST_F(Weights, WritesThroughDataBetweenALoadAndTheFirstStepAreKept) {
  for (const char* level : {"O2", "O5"}) {
    Mlp trained(64), model(64);
    amp::save_safetensors(path(), trained);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
    amp::load_safetensors(path(), net);
    net->fc1->weight.data()[0][1] = 0.5;
    amp::scale_loss(net->forward(torch::zeros({4, 64})).sum(), opt).backward();  // no gradient for the written weight
    opt.step();
    EXPECT_EQ(net->fc1->weight[0][1].item<float>(), 0.5f) << level;
    EXPECT_FALSE(amp::master_params(opt)[0].equal(net->fc1->weight.to(torch::kFloat))) << level << ": others stay exact";
    amp::reset();
  }
}

struct LoadsFromPathImpl : torch::nn::Module {
  LoadsFromPathImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  torch::Tensor forward(torch::Tensor x) { return fc(x); }
  using torch::nn::Module::load;
  void load(const std::string& path) { amp::load_safetensors(path, *this); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(LoadsFromPath);

// It sees FP32 weights, which must not be taken for weights without a master.
TEST_F(Weights, AModelsOwnLoadBeforeTheFirstStepLeavesItsMasters) {
  LoadsFromPath trained;
  amp::save_safetensors(path(), trained);
  for (const char* level : {"O2", "O5"}) {
    LoadsFromPath model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    net->load(path());
    amp::scale_loss(net->forward(features()).sum(), opt).backward();
    const auto masters = amp::master_params(opt);
    EXPECT_EQ(masters[0].scalar_type(), torch::kFloat) << level;
    EXPECT_TRUE(masters[0].equal(trained->fc->weight)) << level;
    EXPECT_NE(model->fc->weight.scalar_type(), torch::kFloat) << level;
    amp::reset();
  }
}

// As the averaged teacher of a student.
TEST_F(Weights, PartsOfAClonedModelAreSavedAndLoadedInFloat32) {
  const std::string part = scratch_ / "fc.pt";
  for (const char* level : {"O2", "O5"}) {
    Replicated model;
    auto net = amp::initialize(model, level, quiet());
    auto teacher = std::dynamic_pointer_cast<ReplicatedImpl>(net->clone());
    torch::save(teacher->fc, part);
    torch::nn::Linear plain(model->fc->options);
    torch::load(plain, part);
    EXPECT_TRUE(plain->weight.equal(teacher->fc->weight.to(torch::kFloat))) << level;
    plain->weight.data().fill_(0.5);
    torch::save(plain, part);
    torch::load(teacher->fc, part);
    EXPECT_TRUE(teacher->fc->weight.to(torch::kFloat).equal(plain->weight)) << level;
    amp::reset();
  }
}

TEST_F(Weights, LoadingACheckpointAsWeightsIsAnError) {
  ConvNet model;
  auto net = amp::initialize(model, "O2", quiet());
  amp::save_checkpoint(path(), net);
  EXPECT_TRUE(contains(message_of([&] { amp::load_safetensors(path(), net); }), "Read it with amp::load_checkpoint"));
}

TEST_F(Weights, MastersAreSavedOnRequest) {
  ConvNet model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  train_step(net, opt, images());
  amp::save_safetensors(path(), net, amp::SaveSafetensorsOptions().masters(true).metadata({{"step", "1"}}));
  const auto tensors = written();
  const auto masters = amp::master_params(opt);
  const auto names = model->named_parameters();
  ASSERT_EQ(masters.size(), names.size());
  bool rounds = false;
  for (size_t i = 0; i < masters.size(); ++i) {
    EXPECT_TRUE(tensors.at(names[i].key()).equal(masters[i])) << names[i].key();
    rounds = rounds || !masters[i].equal(names[i].value().to(torch::kFloat));
  }
  EXPECT_TRUE(rounds) << "no master differs from its parameter: the test shows nothing";
  EXPECT_EQ(read_safetensors(path()).metadata.at("step"), "1");
}

TEST_F(Weights, EveryKindOfModelIsAccepted) {
  const auto module = std::make_shared<MlpImpl>();
  Mlp holder(module);
  std::set<std::string> files;
  const auto save = [&](const auto& model) {
    amp::save_safetensors(path(), model);
    files.insert(scratch_.read("model.safetensors"));
  };
  save(module);
  save(holder);
  save(*module);
  save(module.get());
  save(static_cast<const torch::nn::Module&>(*module));
  save(std::static_pointer_cast<torch::nn::Module>(module));
  EXPECT_EQ(files.size(), 1u);
  const std::string before = bytes_of(*module);
  const auto load = [&](auto&& model) {
    for (auto& parameter : module->parameters()) parameter.data().zero_();
    amp::load_safetensors(path(), model);
    EXPECT_EQ(bytes_of(*module), before);
  };
  load(module);
  load(holder);
  load(*module);
  load(module.get());
  load(static_cast<torch::nn::Module&>(*module));
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(5, 4));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 5).bias(false)));
    head->weight = head->register_parameter("tied", embedding->weight);
    again = register_module("again", head);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear head{nullptr}, again{nullptr};
};

TEST_F(Weights, TiedWeightsAreSavedUnderEachNameAndStayTied) {
  TiedImpl model;
  amp::save_safetensors(path(), model);
  const auto tensors = written();
  for (const char* name : {"embedding.weight", "head.tied", "again.tied"}) {
    EXPECT_TRUE(tensors.at(name).equal(model.embedding->weight)) << name;
  }
  TiedImpl other;
  amp::load_safetensors(path(), other);
  EXPECT_TRUE(other.embedding->weight.equal(model.embedding->weight));
  EXPECT_TRUE(other.head->weight.is_same(other.embedding->weight));
}

TEST_F(Weights, OneNameOfATiedWeightSuffices) {
  TiedImpl model;
  amp::save_safetensors(path(), model, amp::SaveSafetensorsOptions().tied_once(true));
  const auto tensors = written();
  EXPECT_EQ(tensors.count("embedding.weight") + tensors.count("head.tied") + tensors.count("again.tied"), 1u);
  EXPECT_EQ(read_safetensors(path()).metadata.count("again.tied"), 1u);
  TiedImpl other;
  amp::load_safetensors(path(), other);
  EXPECT_TRUE(other.embedding->weight.equal(model.embedding->weight));
}

TEST_F(Weights, MismatchedTensorsAreAnErrorThatNamesThemAllAndChangesNothing) {
  amp::detail::TensorFile file;
  file.tensors = {
      {"fc1.weight", torch::ones({10, 5})}, {"fc2.bias", torch::ones({3}, torch::kLong)}, {"fc3.bias", torch::ones(1)}};
  amp::detail::write_safetensors(path(), file);
  Mlp model;
  const std::string before = bytes_of(*model);
  const auto message = message_of([&] { amp::load_safetensors(path(), model); });
  for (const char* part : {"model.safetensors': ", "'fc1.bias'", "'fc2.weight'", "'fc3.bias'", "'fc1.weight' is Float[10, 5]",
                           "'fc2.bias' is Long[3]"}) {
    EXPECT_TRUE(contains(message, part));
  }
  EXPECT_EQ(bytes_of(*model), before);
  EXPECT_NE(message_of([&] { amp::load_safetensors(scratch_ / "none", model); }).find("No such file"), std::string::npos);
  EXPECT_NE(message_of([&] {
              amp::save_safetensors(path(), std::vector<Mlp>{model, model});
            }).find("of one model"),
            std::string::npos);
}

TEST_F(Weights, PairsOfFourBitValuesAreRefusedAndChangeNothing) {
  Mlp model;
  amp::detail::TensorFile file;
  for (const auto& item : model->named_parameters()) {
    file.tensors.emplace_back(item.key(), torch::ones_like(item.value()).detach());
  }
  torch::Tensor& last = file.tensors.back().second;
  last = torch::zeros(last.sizes(), torch::kByte).view(c10::ScalarType::Float4_e2m1fn_x2);
  amp::detail::write_safetensors(path(), file);
  const std::string before = bytes_of(*model);
  EXPECT_TRUE(contains(message_of([&] { amp::load_safetensors(path(), model); }), "'fc2.bias' is Float4_e2m1fn_x2[3]"));
  EXPECT_EQ(bytes_of(*model), before);
}

// Weights that another program saved in 16 bits or in double are converted.
TEST_F(Weights, FilesOfOtherFloatingDtypesAreAccepted) {
  Mlp model;
  for (const auto dtype : {torch::kHalf, torch::kBFloat16, torch::kDouble}) {
    amp::detail::TensorFile file;
    for (const auto& item : model->named_parameters()) {
      file.tensors.emplace_back(item.key(), torch::full_like(item.value(), 1.0 / 3).to(dtype));
    }
    amp::detail::write_safetensors(path(), file);
    amp::load_safetensors(path(), model);
    const auto expected = torch::full({}, 1.0 / 3).to(dtype).to(torch::kFloat).item<float>();
    for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.eq(expected).all().item<bool>()) << dtype;
  }
}

}  // namespace
}  // namespace apex::test
