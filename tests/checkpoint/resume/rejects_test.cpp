// A file that cannot be loaded is an error with the reason, and changes no byte.
#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel/larc.h>

#include <functional>

#include "tests/amp/optimizers.h"
#include "tests/checkpoint/resume/training.h"

namespace apex::test {
namespace {

using amp::detail::CheckpointContent;
using amp::detail::TensorFile;

class Rejects : public AmpTest {
 protected:
  /// A run in another state than the file's, which must not change.
  Rejects() {
    Training source("Adam", "O2");
    source.run(0, 3);
    source.save(file_, {{"epoch", 1}});
    target_ = std::make_unique<Training>("Adam", "O2", 9);
    target_->run(0, 2);
    torch::manual_seed(kSeed);
    target_->save(before_);
    bytes_ = target_->bytes();
  }

  /// The error of the load. Everything must be unchanged, including the optimizer's state.
  template <class Load>
  std::string refusal(Load&& load) {
    torch::manual_seed(kSeed);
    const auto message = message_of(load);
    EXPECT_EQ(target_->bytes(), bytes_);
    target_->save(folder_ / "after");
    EXPECT_TRUE(read_bytes(folder_ / "after") == read_bytes(before_)) << "the optimizer's state changed";
    return message;
  }
  std::string refusal_of(const TensorFile& file) {
    amp::detail::write_safetensors(folder_ / "changed", file);
    return refusal([&] { target_->load(folder_ / "changed"); });
  }
  /// The error for the file with `change` applied to its content.
  template <class Change>
  std::string refusal_after(Change&& change) {
    auto content = amp::detail::content_of(amp::detail::read_safetensors(file_));
    change(content);
    return refusal_of(amp::detail::file_of(content));
  }

  static constexpr uint64_t kSeed = 5;
  Folder folder_;
  const std::string file_ = folder_ / "run.ckpt", before_ = folder_ / "before";
  std::unique_ptr<Training> target_;
  std::string bytes_;
};

TEST_F(Rejects, AnotherModelListingAllNames) {
  Mlp mlp;
  const auto message = refusal([&] { amp::load_checkpoint(file_, mlp, target_->optimizer); });
  for (const auto& part :
       {"'bn.weight'", "'conv.bias'", "Only in the file", "built like the saved one", "nothing was changed", "run.ckpt"}) {
    EXPECT_TRUE(contains(message, part));
  }
  DropNet wider(7);
  const auto shapes = refusal([&] { amp::load_checkpoint(file_, wider, target_->optimizer); });
  EXPECT_TRUE(contains(shapes, "'fc1.weight' is Float[5, 48] in the file and Float[7, 48] here"));
  EXPECT_TRUE(contains(shapes, "'fc2.weight'"));
}

TEST_F(Rejects, ListsFortyNamesAndCountsTheOthers) {
  torch::nn::Sequential deep;
  for (int i = 0; i < 25; ++i) deep->push_back(torch::nn::Linear(1, 1));
  const auto message = refusal([&] { amp::load_checkpoint(file_, deep, target_->optimizer); });
  EXPECT_TRUE(contains(message, "'19.weight', '19.bias' and 10 more. Only in the file"));
}

TEST_F(Rejects, MissingAndUnexpectedNamesTogether) {
  const auto message = refusal_after([](CheckpointContent& content) {
    content.models[0][0].name = "stem.weight";
    content.models[0][3].name = "stem.bias";
  });
  EXPECT_TRUE(contains(message, "Missing in the file: 'conv.weight', 'bn.bias'. Only in the file: 'stem.bias', 'stem.weight'"));
}

TEST_F(Rejects, AnotherOptimizerClass) {
  Training other("AdamW", "O2");
  other.run(0, 1);
  const auto bytes = other.bytes();
  EXPECT_TRUE(contains(message_of([&] { other.load(file_); }),
                       "saved from an optimizer of the class torch::optim::Adam, this one is a torch::optim::AdamW"));
  EXPECT_EQ(other.bytes(), bytes);
}

TEST_F(Rejects, OtherGroupsParametersOrOrder) {
  const auto message_for = [&](const std::vector<torch::optim::OptimizerParamGroup>& groups, DropNet model) {
    torch::optim::Adam optimizer(groups, torch::optim::AdamOptions(0.01));
    return message_of([&] { amp::load_checkpoint(file_, model, optimizer); });
  };
  DropNet m;
  EXPECT_TRUE(contains(message_for({{m->parameters()}}, m), "its optimizer has 2 parameter groups, this one has 1"));
  const std::vector<torch::Tensor> convs = {m->conv->weight, m->conv->bias, m->bn->weight, m->bn->bias};
  const std::vector<torch::Tensor> layers = {m->fc1->weight, m->fc1->bias, m->fc2->weight, m->fc2->bias};
  EXPECT_TRUE(contains(message_for({{convs}, {{m->fc1->weight}}}, m), "its parameter group 1 has 4 parameters"));
  EXPECT_TRUE(contains(message_for({{layers}, {convs}}, m), "'model0/conv.weight' in the file and 'model0/fc1.weight' here"));
}

TEST_F(Rejects, AReplacedOptimizerAndOneInsideABlock) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  EXPECT_TRUE(contains(message_of([&, &n = net] { amp::save_checkpoint(folder_ / "x", n, optimizer); }),
                       "was replaced by amp::initialize"));
  EXPECT_TRUE(
      contains(message_of([&, &n = net] { amp::load_checkpoint(file_, n, optimizer); }), "was replaced by amp::initialize"));
  auto moved = std::move(opt);
  EXPECT_TRUE(contains(message_of([&, &n = net, &o = opt] { amp::save_checkpoint(folder_ / "x", n, o); }), "moved from"));
  amp::save_checkpoint(folder_ / "own", net, moved);
  auto scaled = amp::scale_loss(net->forward(features()).sum(), moved);
  EXPECT_TRUE(contains(message_of([&, &n = net] { amp::save_checkpoint(folder_ / "x", n, moved); }), "inside a scale_loss"));
  EXPECT_TRUE(contains(message_of([&, &n = net] { amp::load_checkpoint(folder_ / "own", n, moved); }),
                       "load_checkpoint was called inside a scale_loss block"));
  scaled.backward();
}

std::map<std::string, amp::detail::ArchiveTree>& states_in(CheckpointContent& content, size_t optimizer = 0) {
  return content.optimizers[optimizer].archive.children.at("state").children;
}

// Torch's optimizers reject it when they read it.
void make_step_a_text(CheckpointContent& content) { states_in(content).at("3").values["step"] = c10::IValue("three"); }

TEST_F(Rejects, AStateThatTheOptimizerRejectsIsRolledBack) {
  const auto missing = [](CheckpointContent& content) { states_in(content).at("5").values.erase("step"); };
  EXPECT_FALSE(refusal_after(make_step_a_text).empty());
  EXPECT_FALSE(refusal_after(missing).empty());
}

TEST_F(Rejects, AStateThatTheSecondOptimizerRejectsRollsBackBoth) {
  Mlp a, b;
  torch::optim::Adam of_a(a->parameters(), 0.01), of_b(b->parameters(), 0.01);
  auto [nets, opts] = amp::initialize(std::tie(a, b), std::tie(of_a, of_b), "O2", quiet());
  auto& [net_a, net_b] = nets;
  auto& [opt_a, opt_b] = opts;
  const auto train = [&na = net_a, &nb = net_b, &oa = opt_a, &ob = opt_b] {
    train_step(na, oa, features());
    train_step(nb, ob, features());
  };
  train();
  amp::save_checkpoint(file_, nets, opts);
  auto content = amp::detail::content_of(amp::detail::read_safetensors(file_));
  states_in(content, 1).at("0").values["step"] = c10::IValue("three");
  amp::detail::write_safetensors(file_, amp::detail::file_of(content));
  train();
  train_step(net_a, opt_a, features() * INFINITY, /*step=*/false);
  amp::save_checkpoint(before_, nets, opts);
  const auto message = message_of([&, &n = nets, &o = opts] { amp::load_checkpoint(file_, n, o); });
  EXPECT_TRUE(contains(message, "nothing was changed")) << message;
  amp::save_checkpoint(folder_ / "after", nets, opts);
  EXPECT_TRUE(read_bytes(folder_ / "after") == read_bytes(before_));
  opt_a.step();
  EXPECT_TRUE(amp::step_result(opt_a).skipped);
}

TEST_F(Rejects, AFailedLoadKeepsTheSkipOfTheNextStep) {
  target_->optimizer->zero_grad();
  target_->backward(1);  // Inf
  torch::manual_seed(kSeed);
  target_->save(before_);
  bytes_ = target_->bytes();
  EXPECT_FALSE(refusal_after(make_step_a_text).empty());
  target_->optimizer->step();
  EXPECT_TRUE(amp::step_result(*target_->optimizer).skipped);
  EXPECT_EQ(target_->bytes(), bytes_);
}

TEST_F(Rejects, InvalidStatesOptionsAndScalers) {
  EXPECT_TRUE(contains(refusal_after([](CheckpointContent& content) {
                         states_in(content).at("4").values["exp_avg"] = torch::zeros({2, 3});
                       }),
                       "the state 'exp_avg' of the parameter 'model0/fc1.weight' has shape [2, 3], expected [5, 48]"));
  EXPECT_TRUE(contains(
      refusal_after([](CheckpointContent& content) { states_in(content).at("4").values["exp_avg"] = torch::zeros({1}); }),
      "has shape [1], expected [5, 48]"));
  EXPECT_TRUE(contains(refusal_after([](CheckpointContent& content) {
                         auto& states = states_in(content);
                         states["99"] = states.at("4");
                       }),
                       "state of the parameter '99'"));
  for (const std::string key : {"", "x", "4x"}) {
    EXPECT_TRUE(contains(refusal_after([&](CheckpointContent& content) {
                           auto& states = states_in(content);
                           states[key] = states.at("4");
                         }),
                         "state of the parameter '" + key + "', which the file does not list"));
  }
  const auto refusal_of_options = [&](const std::function<void(amp::detail::ArchiveTree&)>& change) {
    return refusal_after([&](CheckpointContent& content) { change(content.optimizers[0].archive); });
  };
  EXPECT_TRUE(contains(refusal_of_options([](auto& archive) { archive.children.erase("param_groups"); }),
                       "its optimizer has no 'param_groups': it was saved by another version of"));
  EXPECT_TRUE(contains(refusal_of_options([](auto& archive) {
                         auto& group = archive.children.at("param_groups").children.at("param_groups/1");
                         group.children.at("options").values.at("lr") = c10::IValue("fast");
                       }),
                       "its optimizer has String for 'param_groups/1/options/lr', not Double"));
  EXPECT_TRUE(contains(refusal_after([](CheckpointContent& content) {
                         content.optimizers[0]
                             .archive.children.at("param_groups")
                             .children.at("param_groups/1")
                             .children.at("options")
                             .values.erase("betas");
                       }),
                       "betas"));
  EXPECT_TRUE(contains(refusal_after([](CheckpointContent& content) { content.scalers[0].loss_scale = -4; }), "-4"));
  EXPECT_TRUE(contains(refusal_after([](CheckpointContent& content) { content.scalers[0].unskipped = -1; }), "-1"));
  EXPECT_TRUE(
      contains(refusal_after([](CheckpointContent& content) { content.generators[0].state = torch::zeros({8}, torch::kByte); }),
               "random number generator of cpu"));
  EXPECT_TRUE(contains(refusal_after([](CheckpointContent& content) { content.optimizers.clear(); }), "holds 0 optimizers"));
}

TEST_F(Rejects, MastersOfAnotherShapeOrDtype) {
  const auto refusal_of_master = [&](const torch::Tensor& master) {
    return refusal_after([&](CheckpointContent& content) { content.optimizers[0].params.at(4).master = master; });
  };
  const std::string value = "the float32 value of the parameter 'model0/fc1.weight' has dtype ";
  EXPECT_TRUE(contains(refusal_of_master(torch::zeros({2, 3})), value + "Float and shape [2, 3], expected [5, 48]."));
  EXPECT_TRUE(
      contains(refusal_of_master(torch::zeros({5, 48}, torch::kHalf)), value + "Half and shape [5, 48], expected [5, 48]."));
}

// LARC has the states of the optimizer that it wraps.
TEST_F(Rejects, AStateOfAnotherShapeInAFileOfLarc) {
  using torch::optim::SGD;
  DropNet net;
  parallel::LARC<SGD> larc(SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  net->forward(input_of(0)).sum().backward();
  larc.step();
  amp::save_checkpoint(file_, net, larc);
  auto content = amp::detail::content_of(amp::detail::read_safetensors(file_));
  auto& states = states_in(content);
  ASSERT_EQ(states.at("4").values.count("momentum_buffer"), 1u);
  states.at("4").values["momentum_buffer"] = torch::zeros({2, 3});
  amp::detail::write_safetensors(file_, amp::detail::file_of(content));
  const auto bytes = bytes_of(*net) + bytes_of(larc);
  EXPECT_TRUE(contains(message_of([&] { amp::load_checkpoint(file_, net, larc); }),
                       "the state 'momentum_buffer' of the parameter 'model0/fc1.weight' has shape [2, 3], expected [5, 48]"));
  EXPECT_EQ(bytes_of(*net) + bytes_of(larc), bytes);
}

TEST_F(Rejects, FilesThatAreNotCheckpoints) {
  EXPECT_TRUE(contains(refusal([&] { target_->load(folder_ / "nowhere"); }), "nowhere"));
  write_bytes(folder_ / "text", "not a checkpoint");
  EXPECT_TRUE(contains(refusal([&] { target_->load(folder_ / "text"); }), "text"));
  EXPECT_TRUE(contains(refusal_of({{{"fc1.weight", torch::zeros({5, 48})}}, {{"format", "pt"}}}),
                       "not a checkpoint of amp::save_checkpoint"));
  auto file = amp::detail::read_safetensors(file_);
  file.metadata["version"] = "2";
  EXPECT_TRUE(contains(refusal_of(file), "Use a newer apex_cpp"));
}

TEST_F(Rejects, DescriptionsInAnotherFormat) {
  const auto original = amp::detail::read_safetensors(file_);
  const std::string text = original.metadata.at("checkpoint");
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const auto at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return changed.replace(at, from.size(), to);
  };
  const std::string deep(100000, '[');
  const std::vector<std::string> descriptions = {
      "",
      "null",
      "[]",
      "{}",
      "{",
      text + "x",
      text.substr(0, text.size() / 2),
      deep,
      "{\"amp\":" + deep,
      replaced("\"amp\":", "\"AMP\":"),
      replaced("\"opt_level\":\"O2\"", "\"opt_level\":2"),
      replaced("\"groups\":[[0,", "\"groups\":[[-1,"),
      replaced("\"groups\":[[0,", "\"groups\":[[8,"),
      replaced("\"groups\":[[0,", "\"groups\":[[18446744073709551615,"),
      replaced("\"groups\":[[0,", "\"groups\":[[0.5,"),
      replaced("\"shape\":[3,1,3,3]", "\"shape\":[3,1,3]"),
      replaced("\"shape\":[3,1,3,3]", "\"shape\":\"[3,1,3,3]\""),
      replaced("\"optimizer0/state/0/exp_avg\"", "\"optimizer0/state/0/nothing\""),
      replaced("{\"int\":2}", "{\"int\":2.5}"),
      replaced("{\"int\":2}", "{\"whole\":2}"),
      replaced("{\"int\":2}", "{}"),
      replaced("{\"int\":2}", "{\"int\":2,\"none\":null}"),
      replaced("{\"int\":2}", "{\"int\":99999999999999999999}"),
      replaced("\"unskipped\":", "\"unskipped\":\"a\",\"x\":"),
      replaced("\"generators\":[\"cpu\"", "\"generators\":[\"gpu\""),
      replaced("\"metadata\":{\"epoch\":{\"int\":1}}", "\"metadata\":{\"epoch\":{\"tuple\":[]}}")};
  for (const auto& description : descriptions) {
    auto file = original;
    file.metadata["checkpoint"] = description;
    SCOPED_TRACE(description.substr(0, 60));
    EXPECT_FALSE(refusal_of(file).empty());
  }
}

/// A small checkpoint, and a run whose state a damaged copy must not change.
class Damage : public AmpTest {
 protected:
  struct Run {
    Run() : optimizer(model->parameters(), torch::optim::AdamOptions(0.1)) {}
    std::string bytes() {
      return bytes_of(*model) + bytes_of(optimizer) + bytes_of(at::detail::getDefaultCPUGenerator().get_state());
    }
    void step() {
      model->forward(torch::ones({1, 2})).sum().backward();
      optimizer.step();
    }
    torch::nn::Linear model{2, 1};
    torch::optim::Adam optimizer;
  };

  Damage() {
    run_.step();
    amp::save_checkpoint(folder_ / "whole", run_.model, run_.optimizer, {{"epoch", 1}});
    whole_ = read_bytes(folder_ / "whole");
    saved_ = run_.bytes();
    run_.step();
    torch::rand({1});
    amp::save_checkpoint(folder_ / "other", run_.model, run_.optimizer);
    other_ = run_.bytes();
  }
  /// Whether the damaged file was loaded. If so, the state must be the saved one, bit for bit.
  bool loads(const std::string& damaged) {
    std::filesystem::remove(folder_ / "damaged");  // ext4 writes a truncated file to the disk at once, a new one later
    write_bytes(folder_ / "damaged", damaged);
    try {
      amp::load_checkpoint(folder_ / "damaged", run_.model, run_.optimizer);
    } catch (const c10::Error&) {
      return false;
    }
    EXPECT_EQ(run_.bytes(), saved_);
    amp::load_checkpoint(folder_ / "other", run_.model, run_.optimizer);
    return true;
  }

  Folder folder_;
  Run run_;
  std::string whole_, saved_, other_;
};

TEST_F(Damage, EveryTruncationIsAnError) {
  ASSERT_TRUE(loads(whole_));
  for (size_t size = 0; size < whole_.size(); ++size) {
    ASSERT_FALSE(loads(whole_.substr(0, size))) << "of " << size << " bytes";
  }
  EXPECT_EQ(run_.bytes(), other_);
  std::cout << whole_.size() << " truncations\n";
}

TEST_F(Damage, FlippedBitsOfTheHeaderAndTheDataAreErrors) {
  ASSERT_TRUE(loads(whole_));
  uint64_t header = 0;
  std::memcpy(&header, whole_.data(), sizeof(header));
  int flips = 0, accepted = 0;
  const auto flip = [&](size_t bit) {
    auto damaged = whole_;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    accepted += loads(damaged);
    ++flips;
  };
  const size_t data = (sizeof(header) + header) * 8;
  for (size_t bit = 0; bit < data; ++bit) flip(bit);
  for (size_t bit = data; bit < whole_.size() * 8; bit += 37) flip(bit);
  EXPECT_EQ(run_.bytes(), other_);
  EXPECT_EQ(accepted, 0);
  std::cout << flips << " flipped bits\n";
}

}  // namespace
}  // namespace apex::test
