// Torch archives as trees of tensors, and back.
#include <apex_cpp/amp/checkpoint/archive.h>
#include <apex_cpp/amp/checkpoint/value_json.h>
#include <apex_cpp/amp/comparison/measurement.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

namespace apex::test {
namespace {

using amp::detail::ArchiveTree;
using amp::detail::child_of;
using amp::detail::load_tree;
using amp::detail::tree_of;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

const void* memory_of(const c10::IValue& value) { return value.toTensor().const_data_ptr(); }

TEST(ArchiveTrees, HoldAllSavedTensorsWhicheverChunksTheyWereWrittenIn) {
  std::vector<torch::Tensor> saved;
  for (int64_t i = 0; i < 200; ++i) saved.push_back(torch::arange(i * 37) + i);
  saved.push_back(torch::arange(1 << 20));
  const auto tree = tree_of([&](OutputArchive& archive) {
    OutputArchive nested(archive.compilation_unit());
    for (size_t i = 0; i < saved.size(); ++i) nested.write(std::to_string(i), saved[i]);
    archive.write("tensors", nested);
    archive.write("text", c10::IValue("words"));
    archive.write("byte", torch::full({1}, 77, torch::kByte));
  });
  EXPECT_EQ(tree.values.at("text").toStringRef(), "words");
  EXPECT_EQ(tree.values.at("byte").toTensor().item<int64_t>(), 77);
  const auto& values = tree.children.at("tensors").values;
  ASSERT_EQ(values.size(), saved.size());
  for (size_t i = 0; i < saved.size(); ++i) EXPECT_TRUE(values.at(std::to_string(i)).toTensor().equal(saved[i])) << i;
  EXPECT_NE(memory_of(values.at("200")), saved[200].const_data_ptr()) << "no copy";
}

TEST(ArchiveTrees, HoldTensorsThatShareMemory) {
  const auto whole = torch::arange(1 << 16);
  const auto tree = tree_of([&](OutputArchive& archive) {
    archive.write("whole", whole);
    archive.write("end", whole.narrow(0, 1000, 5));
    archive.write("again", whole);
  });
  EXPECT_TRUE(tree.values.at("whole").toTensor().equal(whole));
  EXPECT_TRUE(tree.values.at("end").toTensor().equal(whole.narrow(0, 1000, 5)));
  EXPECT_TRUE(tree.values.at("again").toTensor().equal(whole));
}

// LibTorch's own have up to 5 levels.
TEST(ArchiveTrees, ComeBackFromJsonWithUpToThirtyLevels) {
  const auto nested = [](int levels) {
    ArchiveTree tree;
    tree.values["level"] = int64_t{levels};
    for (int i = 0; i < levels; ++i) {
      ArchiveTree outer;
      outer.children["inside"] = std::move(tree);
      tree = std::move(outer);
    }
    return tree;
  };
  const auto from_json = [](const ArchiveTree& tree) {
    return amp::detail::tree_from_json(amp::detail::to_json(tree, "", {}), {});
  };
  const auto tree = from_json(nested(30));
  const ArchiveTree* innermost = &tree;
  while (const auto* child = child_of(*innermost, "inside")) innermost = child;
  EXPECT_EQ(innermost->values.at("level").toInt(), 30);
  EXPECT_THROW(from_json(nested(40)), c10::Error);
}

// A sharded optimizer gathers its state for the archive.
TEST(ArchiveTrees, DoNotKeepTemporaryCopiesAlive) {
  constexpr int64_t kBytes = 1 << 22;
  const auto memory = std::make_shared<amp::detail::TensorMemory>();
  const amp::detail::Counting counting(memory);
  const auto tree = tree_of([&](OutputArchive& archive) { archive.write("copy", torch::zeros({kBytes}, torch::kByte)); });
  EXPECT_GE(memory->live(), kBytes);
  EXPECT_LT(memory->take_peak(), 2 * kBytes);
}

TEST(ArchiveTrees, FindChildrenByName) {
  ArchiveTree tree;
  tree.children["here"].values["number"] = 3;
  EXPECT_EQ(child_of(tree, "here"), &tree.children.at("here"));
  EXPECT_EQ(child_of(std::as_const(tree), "here"), &tree.children.at("here"));
  EXPECT_EQ(child_of(tree, "number"), nullptr);
}

class LoadedTree : public ::testing::Test {
 protected:
  LoadedTree() {
    tree_.values["half"] = torch::arange(6).reshape({2, 3}).to(torch::kHalf);
    tree_.values["transposed"] = torch::rand({4, 5}).t();
    tree_.values["number"] = 3;
    tree_.values["none"] = c10::IValue();
    tree_.values["list"] = c10::List<torch::Tensor>({torch::ones({3}), torch::zeros({2}, torch::kLong)});
    c10::Dict<std::string, torch::Tensor> dict;
    dict.insert("a", torch::rand({3}));
    tree_.values["tuple of a dict and a number"] = c10::ivalue::Tuple::create({c10::IValue(dict), 2});
    tree_.children["inside"].values["deep"] = torch::rand({7});
    tree_.children["inside"].values["text"] = "words";
  }
  ArchiveTree tree_;
};

TEST_F(LoadedTree, SharesItsMemoryWithTheTree) {
  load_tree(tree_, [&](InputArchive& archive) {
    for (const char* key : {"half", "transposed"}) {
      const auto expected = tree_.values.at(key).toTensor();
      torch::Tensor read;
      archive.read(key, read);
      EXPECT_EQ(read.const_data_ptr(), expected.const_data_ptr()) << key;
      EXPECT_EQ(read.scalar_type(), expected.scalar_type()) << key;
      EXPECT_EQ(read.sizes(), expected.sizes()) << key;
      EXPECT_EQ(read.strides(), expected.strides()) << key;
    }
    InputArchive inside;
    archive.read("inside", inside);
    c10::IValue deep;
    inside.read("deep", deep);
    EXPECT_EQ(memory_of(deep), memory_of(tree_.children.at("inside").values.at("deep")));
    c10::IValue list;
    archive.read("list", list);
    const auto expected = tree_.values.at("list").toTensorVector();
    const auto read = list.toTensorVector();
    ASSERT_EQ(read.size(), expected.size());
    for (size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(read[i].const_data_ptr(), expected[i].const_data_ptr()) << i;
      EXPECT_TRUE(read[i].equal(expected[i])) << i;
    }
  });
}

TEST_F(LoadedTree, FindsTensorsInTuplesAndDictionaries) {
  load_tree(tree_, [&](InputArchive& archive) {
    const char* const key = "tuple of a dict and a number";
    c10::IValue read;
    archive.read(key, read);
    const auto& elements = read.toTupleRef().elements();
    const auto& saved = tree_.values.at(key).toTupleRef().elements();
    EXPECT_EQ(elements[1].toInt(), 2);
    EXPECT_TRUE(elements[0].toGenericDict().at("a").toTensor().equal(saved[0].toGenericDict().at("a").toTensor()));
    EXPECT_EQ(memory_of(elements[0].toGenericDict().at("a")), memory_of(saved[0].toGenericDict().at("a")));
  });
}

// In any order of the keys.
TEST_F(LoadedTree, HasEachTensorOfADictionaryUnderItsKey) {
  c10::Dict<std::string, torch::Tensor> by_text;
  c10::Dict<int64_t, torch::Tensor> by_number;
  for (int64_t i = 0; i < 100; ++i) {
    const int64_t key = i * 37 % 101;
    by_text.insert(std::to_string(key), torch::full({2}, key));
    by_number.insert(key, torch::full({2}, key));
  }
  EXPECT_EQ(by_text.erase("74"), 1u);
  by_text.insert("74", torch::full({2}, 74));
  tree_.values["by text"] = by_text;
  tree_.values["by number"] = by_number;
  load_tree(tree_, [](InputArchive& archive) {
    c10::IValue text, number;
    archive.read("by text", text);
    archive.read("by number", number);
    ASSERT_EQ(text.toGenericDict().size(), 100u);
    ASSERT_EQ(number.toGenericDict().size(), 100u);
    for (const auto& item : text.toGenericDict()) {
      EXPECT_EQ(item.value().toTensor()[0].item<int64_t>(), std::stoll(item.key().toStringRef()));
    }
    for (const auto& item : number.toGenericDict()) {
      EXPECT_EQ(item.value().toTensor()[0].item<int64_t>(), item.key().toInt());
    }
  });
}

TEST_F(LoadedTree, ContainsValuesThatAreNotTensors) {
  load_tree(tree_, [](InputArchive& archive) {
    c10::IValue value;
    archive.read("number", value);
    EXPECT_EQ(value.toInt(), 3);
    archive.read("none", value);
    EXPECT_TRUE(value.isNone());
    InputArchive inside;
    archive.read("inside", inside);
    inside.read("text", value);
    EXPECT_EQ(value.toStringRef(), "words");
  });
}

}  // namespace
}  // namespace apex::test
