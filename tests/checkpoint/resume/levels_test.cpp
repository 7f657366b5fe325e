// A checkpoint of one level loaded at another: everything that fits is loaded, and the notes list the rest.
#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/optimizers.h>

#include "tests/amp/support.h"
#include "tests/checkpoint/resume/training.h"
#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

using torch::Tensor;

std::string all(const std::vector<std::string>& notes) {
  std::string text;
  for (const auto& note : notes) text += note + "\n";
  return text;
}

Tensor master_of(Training& run, size_t group, size_t param) { return run.optimizer->param_groups()[group].params()[param]; }

class AcrossLevels : public AmpTest {
 protected:
  std::string saved_at(const std::string& optimizer, const std::string& level) {
    Training run(optimizer, level);
    run.run(0, 3);
    const auto file = folder_ / (optimizer + level);
    run.save(file);
    return file;
  }
  Folder folder_;
};

TEST_F(AcrossLevels, O2ToO0LoadsTheMastersIntoTheParametersBitForBit) {
  for (const char* to : {"O0", "O1", "plain"}) {
    SCOPED_TRACE(to);
    Training run("Adam", "O2");
    run.run(0, 3);
    run.save(folder_ / "o2");
    const Tensor master = master_of(run, 1, 0).detach().clone();
    ASSERT_FALSE(torch::equal(master, run.model->fc1->weight.to(torch::kFloat))) << "nothing is lost in 16 bits";
    const Tensor moment =
        static_cast<torch::optim::AdamParamState&>(*run.optimizer->state().at(master_of(run, 1, 0).unsafeGetTensorImpl()))
            .exp_avg()
            .clone();
    Training other("Adam", to, 9);
    const auto loaded = other.load(folder_ / "o2");
    EXPECT_TRUE(torch::equal(other.model->fc1->weight, master));
    EXPECT_EQ(loaded.opt_level, "O2");
    EXPECT_TRUE(contains(all(loaded.notes), "Saved at O2, loaded at"));
    EXPECT_TRUE(contains(all(loaded.notes), "from their FP32 master weights"));
    const auto& state = static_cast<torch::optim::AdamParamState&>(
        *other.optimizer->state().at(other.model->fc1->weight.unsafeGetTensorImpl()));
    EXPECT_TRUE(torch::equal(state.exp_avg(), moment));
    EXPECT_EQ(state.step(), 2) << "of three steps one was skipped";
    other.run(3, 5);
    EXPECT_TRUE(std::isfinite(other.losses.back()));
  }
}

TEST_F(AcrossLevels, O0ToO2LoadsTheParametersIntoTheMasters) {
  Training run("SGD", "O0");
  run.run(0, 3);
  run.save(folder_ / "o0");
  for (int trained : {0, 2}) {
    Training other("SGD", "O2", 9);
    other.run(0, trained);
    const auto loaded = other.load(folder_ / "o0");
    EXPECT_TRUE(torch::equal(master_of(other, 1, 0), run.model->fc1->weight)) << trained;
    EXPECT_TRUE(torch::equal(other.model->fc1->weight, run.model->fc1->weight.to(torch::kHalf)));
    EXPECT_TRUE(torch::equal(other.model->bn->weight, run.model->bn->weight));
    EXPECT_TRUE(contains(all(loaded.notes), "6 FP32 master weights were made"));
    EXPECT_TRUE(contains(all(loaded.notes), "keeps its dynamic scale of "));
    other.run(3, 5);
  }
}

TEST_F(AcrossLevels, FP16ToBF16KeepsTheMastersAndTheStaticScale) {
  Training run("FusedAdam", "O2");
  run.run(0, 3);
  run.save(folder_ / "o2");
  Training other("FusedAdam", "O5", 9);
  const auto loaded = other.load(folder_ / "o2");
  const Tensor master = master_of(run, 1, 0);
  EXPECT_TRUE(torch::equal(master_of(other, 1, 0), master));
  EXPECT_TRUE(torch::equal(other.model->fc1->weight, master.detach().to(torch::kBFloat16))) << "rounded once";
  EXPECT_EQ(amp::loss_scaler().loss_scale(), 1.0);
  EXPECT_TRUE(contains(all(loaded.notes), "keeps its static scale of 1"));
  other.run(3, 5);
}

TEST_F(AcrossLevels, O2ToO3NotesUnusedMastersAndCastsTheState) {
  const auto file = saved_at("SGD", "O2");
  Training other("SGD", "O3", 9);
  const auto notes = all(other.load(file).notes);
  EXPECT_TRUE(contains(notes, "master weights of the file are not used"));
  const auto& state =
      static_cast<torch::optim::SGDParamState&>(*other.optimizer->state().at(other.model->fc1->weight.unsafeGetTensorImpl()));
  EXPECT_EQ(state.momentum_buffer().scalar_type(), torch::kHalf);
  other.run(3, 5);
}

TEST_F(AcrossLevels, EveryPairOfLevelsLoadsAndTrains) {
  const char* const levels[] = {"plain", "O0", "O1", "O2", "O3", "O4", "O5", "O6"};
  for (const std::string optimizer : {"Adam", "FusedLAMB"}) {
    for (const std::string from : levels) {
      const auto file = saved_at(optimizer, from);
      DropNet saved;
      amp::load_checkpoint(file, saved);  // masters where the file has some
      const auto values = saved->named_parameters();
      for (const std::string to : levels) {
        SCOPED_TRACE(optimizer + " " + from + " to " + to);
        Training other(optimizer, to, 9);
        const auto loaded = other.load(file);
        EXPECT_EQ(loaded.notes.empty(), from == to);
        EXPECT_EQ(loaded.opt_level, from == "plain" ? "" : from);
        for (const auto& item : other.model->named_parameters()) {
          const Tensor& value = *values.find(item.key());
          EXPECT_TRUE(item.value().equal(value.to(item.value().scalar_type()))) << item.key();
        }
        if (to != "plain") {
          const auto masters = amp::master_params(*other.optimizer);
          ASSERT_EQ(masters.size(), values.size());
          for (size_t i = 0; i < masters.size(); ++i) {
            EXPECT_TRUE(masters[i].equal(values[i].value().to(masters[i].scalar_type()))) << i;
          }
        }
        other.run(3, 5);
        EXPECT_TRUE(std::isfinite(other.losses.back()));
      }
    }
  }
}

TEST_F(AcrossLevels, AnotherNumberOfLossesIsNoted) {
  Training run("SGD", "O2", 3, quiet().num_losses(3));
  amp::load_state_dict({{"loss_scaler0", {8.0, 1}}, {"loss_scaler1", {16.0, 2}}, {"loss_scaler2", {32.0, 3}}});
  run.save(folder_ / "three");
  Training other("SGD", "O2", 3, quiet().num_losses(2));
  EXPECT_TRUE(contains(all(other.load(folder_ / "three").notes), "3 loss scalers, there are 2 here; 2 were restored"));
  EXPECT_EQ(amp::loss_scaler(1).loss_scale(), 16.0);
  EXPECT_EQ(amp::loss_scaler(1).unskipped(), 2);
}

TEST_F(AcrossLevels, LbfgsGoesOnInAnotherDtype) {
  using Levels = std::pair<std::string, std::string>;
  for (const auto& [from, to] : {Levels{"O0", "O3"}, Levels{"O3", "O0"}, Levels{"O1", "O3"}}) {
    SCOPED_TRACE(from + " to " + to);
    const auto file = saved_at("LBFGS", from);
    Training other("LBFGS", to, 9);
    other.load(file);
    EXPECT_EQ(message_of([&other = other] { other.run(3, 5); }), "");
  }
}

// LBFGS has the gradients of all parameters in one vector, other classes have tensors for each.
TEST_F(AcrossLevels, StatesFitAGroupOfTwoDtypes) {
  const auto adams = saved_at("Adam", "O0"), lbfgss = saved_at("LBFGS", "O0");
  Training adam("Adam", "O3", 9, quiet().keep_batchnorm_fp32(true));
  adam.load(adams);
  ASSERT_EQ(adam.model->conv->weight.scalar_type(), torch::kHalf);
  ASSERT_EQ(adam.model->bn->weight.scalar_type(), torch::kFloat);
  for (const Tensor& param : adam.model->parameters()) {
    auto& state = static_cast<torch::optim::AdamParamState&>(*adam.optimizer->state().at(param.unsafeGetTensorImpl()));
    EXPECT_EQ(state.exp_avg().scalar_type(), param.scalar_type()) << param.sizes();
  }
  Training lbfgs("LBFGS", "O3", 9, quiet().keep_batchnorm_fp32(true));
  lbfgs.load(lbfgss);
  auto& state = static_cast<torch::optim::LBFGSParamState&>(*lbfgs.optimizer->state().begin()->second);
  EXPECT_EQ(state.d().scalar_type(), torch::kFloat);
  EXPECT_EQ(state.prev_flat_grad().scalar_type(), torch::kFloat);
  EXPECT_EQ(message_of([&] { lbfgs.run(3, 5); }), "");
}

TEST_F(AcrossLevels, MissingRandomStatesAndDevicesAreNoted) {
  const auto file = saved_at("SGD", "O2");
  auto content = amp::detail::content_of(amp::detail::read_safetensors(file));
  content.generators[0].device = "cuda:99";
  amp::detail::write_safetensors(file, amp::detail::file_of(content));
  Training other("SGD", "O2", 9);
  torch::manual_seed(5);
  const auto random = bytes_of(at::detail::getDefaultCPUGenerator().get_state());
  const auto notes = all(other.load(file).notes);
  EXPECT_TRUE(contains(notes, "The file has no random number state of cpu, which keeps its present state."));
  EXPECT_TRUE(contains(notes, "The file has the random number state of cuda:99, a device that is missing here."));
  EXPECT_EQ(bytes_of(at::detail::getDefaultCPUGenerator().get_state()), random);
}

TEST_F(AcrossLevels, LoadingOnlyTheModelUsesTheMastersAndNoRandomStateOrScalers) {
  const auto file = saved_at("SGD", "O2");
  Training reference("SGD", "O0", 9);
  reference.load(file);
  DropNet plain;
  torch::manual_seed(5);
  const auto random = bytes_of(at::detail::getDefaultCPUGenerator().get_state());
  amp::load_checkpoint(file, plain);
  EXPECT_EQ(bytes_of(*plain), bytes_of(*reference.model));
  EXPECT_EQ(bytes_of(at::detail::getDefaultCPUGenerator().get_state()), random);

  Training trained("SGD", "O2", 9);
  trained.run(0, 1);
  amp::load_checkpoint(file, trained.net);
  EXPECT_TRUE(torch::equal(master_of(trained, 1, 0), plain->fc1->weight)) << "the next step would undo the load";
}

/// Two weights, or one that is tied.
struct PairImpl : torch::nn::Module {
  explicit PairImpl(bool tied) {
    first = register_parameter("first", torch::rand({6, 6}));
    second = register_parameter("second", tied ? first : torch::rand({6, 6}));
  }
  Tensor forward(const Tensor& x) { return x.mm(first).mm(second); }
  Tensor first, second;
};
TORCH_MODULE(Pair);

// As where torch copies values name by name. Only the first weight has a master, which is not the other's value.
TEST_F(AcrossLevels, ATiedWeightBecomesTheLastOfTwoWeights) {
  Pair two(false), tied(true);
  torch::optim::SGD optimizer({two->first}, torch::optim::SGDOptions(0.1));
  auto [net, opt] = amp::initialize(two, optimizer, "O2", quiet().loss_scale(1.0));
  { amp::scale_loss(net->forward(features()).square().mean(), opt).backward(); }
  opt.step();
  amp::save_checkpoint(folder_ / "two", net, opt);
  amp::load_checkpoint(folder_ / "two", tied);
  EXPECT_TRUE(torch::equal(tied->first, two->second.to(torch::kFloat)));
  EXPECT_TRUE(tied->second.is_same(tied->first));
}

TEST_F(AcrossLevels, CpuFilesLoadIntoCudaModels) {
  APEX_CPP_NEEDS_GPUS(1);
  const auto file = saved_at("FusedAdam", "O2");
  DropNet model;
  model->to(torch::kCUDA);
  auto optimizer = make_optimizer("FusedAdam", model);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  amp::load_checkpoint(file, net, opt);
  Training on_cpu("FusedAdam", "O2", 9);
  on_cpu.load(file);
  EXPECT_TRUE(torch::equal(opt->param_groups()[1].params()[0].cpu(), master_of(on_cpu, 1, 0)));
  amp::scale_loss(net->forward(images().cuda()).square().mean(), *opt).backward();
  opt->step();
  amp::save_checkpoint(folder_ / "cuda", net, opt);
  EXPECT_TRUE(on_cpu.load(folder_ / "cuda").notes.size() <= 1u) << "the CUDA generator may be missing, nothing else";
}

}  // namespace
}  // namespace apex::test
