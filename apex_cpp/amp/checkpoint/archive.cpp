#include <apex_cpp/amp/checkpoint/archive.h>

#include <apex_cpp/amp/tensors/map_tensors.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

namespace apex::amp {
namespace {

constexpr const char* kKinds[] = {"a truth value", "a whole number", "a number", "a text"};  // in the variant's order

}  // namespace

template <class T>
const T& MetadataValue::get(const char* wanted) const {
  const T* held = std::get_if<T>(&value_);
  TORCH_CHECK_TYPE(held, "The checkpoint's metadata has ", kKinds[value_.index()], key_.empty() ? "" : " under '", key_,
                   key_.empty() ? "" : "'", ", but the program reads ", wanted, ".");
  return *held;
}

bool MetadataValue::to_bool() const { return get<bool>(kKinds[0]); }

int64_t MetadataValue::to_int() const { return get<int64_t>(kKinds[1]); }

double MetadataValue::to_double() const {
  if (const auto* whole = std::get_if<int64_t>(&value_)) return static_cast<double>(*whole);
  return get<double>(kKinds[2]);
}

const std::string& MetadataValue::to_string() const { return get<std::string>(kKinds[3]); }

bool operator==(const MetadataValue& a, const MetadataValue& b) { return a.value_ == b.value_; }

const MetadataValue& Metadata::at(const std::string& key) const {
  const auto found = find(key);
  if (found != end()) return found->second;
  std::string keys;
  for (const auto& [name, value] : *this) keys += (keys.empty() ? "'" : ", '") + name + "'";
  C10_THROW_ERROR(IndexError,
                  "The checkpoint's metadata has no '" + key + "'; it has " + (keys.empty() ? "nothing" : keys) + ".");
}

}  // namespace apex::amp

namespace apex::amp::detail {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

/// The bytes that `save` writes, in the chunks that torch passes on. One string would be copied as it grows.
class ArchiveBytes {
 public:
  // Frees the copies that `save` made for the archive before anything is read.
  explicit ArchiveBytes(const std::function<void(OutputArchive&)>& save) {
    OutputArchive archive;
    save(archive);
    archive.save_to([&](const void* data, size_t bytes) {
      if (bytes > 0) parts_.push_back({size_, std::string(static_cast<const char*>(data), bytes)});
      size_ += bytes;
      return bytes;
    });
  }

  void load_into(InputArchive& archive, std::optional<at::Device> device) const {
    archive.load_from([&](uint64_t position, void* to, size_t bytes) { return read(position, to, bytes); },
                      [&] { return size_; }, device);
  }

 private:
  struct Part {
    uint64_t begin;
    std::string bytes;
  };

  size_t read(uint64_t position, void* to, size_t bytes) const {
    if (position >= size_) return 0;
    const size_t wanted = std::min<uint64_t>(bytes, size_ - position);
    const auto after = [](uint64_t at, const Part& part) { return at < part.begin; };
    auto part = std::upper_bound(parts_.begin(), parts_.end(), position, after) - 1;
    for (size_t done = 0; done < wanted; ++part) {
      const size_t skipped = position + done - part->begin;
      const size_t count = std::min(wanted - done, part->bytes.size() - skipped);
      std::memcpy(static_cast<char*>(to) + done, part->bytes.data() + skipped, count);
      done += count;
    }
    return wanted;
  }

  std::vector<Part> parts_;
  size_t size_ = 0;
};

ArchiveTree read_all(InputArchive& archive) {
  ArchiveTree tree;
  for (const auto& key : archive.keys()) {
    InputArchive nested;
    if (archive.try_read(key, nested)) {
      tree.children.emplace(key, read_all(nested));
    } else {
      archive.read(key, tree.values[key]);
    }
  }
  return tree;
}

void write_all(const ArchiveTree& tree, OutputArchive& archive) {
  for (const auto& [key, value] : tree.values) archive.write(key, value);
  for (const auto& [key, child] : tree.children) {
    OutputArchive nested(archive.compilation_unit());
    write_all(child, nested);
    archive.write(key, nested);
  }
}

// Represents a tensor in an archive without memory for its elements. Archives reject undefined tensors themselves.
at::Tensor placeholder_of(const at::Tensor& tensor) { return tensor.defined() ? at::empty({0}, tensor.options()) : tensor; }

ArchiveTree with_placeholders(const ArchiveTree& tree) {
  ArchiveTree light;
  for (const auto& [key, value] : tree.values) light.values.emplace(key, map_ivalue(value, placeholder_of));
  for (const auto& [key, child] : tree.children) light.children.emplace(key, with_placeholders(child));
  return light;
}

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  map_ivalue(value, [&](const at::Tensor& tensor) { return tensors.emplace_back(tensor); });
  return tensors;
}

// An archive returns its own tensors, so set_data can replace their values. Dictionaries keep their order in an archive.
void become(const c10::IValue& placeholder, const c10::IValue& value) {
  const auto placeholders = tensors_in(placeholder), values = tensors_in(value);
  for (size_t i = 0; i < values.size(); ++i) placeholders.at(i).set_data(values[i]);
}

void fill_placeholders(InputArchive& archive, const ArchiveTree& tree) {
  for (const auto& [key, value] : tree.values) {
    c10::IValue placeholder;
    archive.read(key, placeholder);
    become(placeholder, value);
  }
  for (const auto& [key, child] : tree.children) {
    InputArchive nested;
    archive.read(key, nested);
    fill_placeholders(nested, child);
  }
}

InputArchive load_back(const std::function<void(OutputArchive&)>& save, std::optional<at::Device> device) {
  const ArchiveBytes bytes(save);
  InputArchive archive;
  bytes.load_into(archive, device);
  return archive;
}

// Replaces the addresses in one group by positions, in order.
void number_params(ArchiveTree& group, std::map<std::string, std::string>& positions) {
  for (size_t i = 0;; ++i) {
    const auto param = group.values.find("params/" + std::to_string(i));
    if (param == group.values.end()) return;
    const auto position = std::to_string(positions.size());
    param->second = positions.try_emplace(param->second.toStringRef(), position).first->second;
  }
}

}  // namespace

ArchiveTree* child_of(ArchiveTree& tree, const std::string& key) {
  const auto found = tree.children.find(key);
  return found == tree.children.end() ? nullptr : &found->second;
}

const ArchiveTree* child_of(const ArchiveTree& tree, const std::string& key) {
  return child_of(const_cast<ArchiveTree&>(tree), key);
}

ArchiveTree tree_of(const std::function<void(OutputArchive&)>& save) {
  auto archive = load_back(save, at::kCPU);
  return read_all(archive);
}

void load_tree(const ArchiveTree& tree, const std::function<void(InputArchive&)>& load) {
  auto archive = load_back([&](OutputArchive& saved) { write_all(with_placeholders(tree), saved); }, std::nullopt);
  fill_placeholders(archive, tree);
  load(archive);
}

void name_params_by_position(ArchiveTree& optimizer) {
  ArchiveTree* groups = child_of(optimizer, "param_groups");
  ArchiveTree* state = child_of(optimizer, "state");
  if (!groups || !state) return;
  std::map<std::string, std::string> positions;
  for (size_t i = 0;; ++i) {
    ArchiveTree* group = child_of(*groups, "param_groups/" + std::to_string(i));
    if (!group) break;
    number_params(*group, positions);
  }
  ArchiveTree by_position;
  for (auto& [address, of_param] : state->children) {
    const auto position = positions.find(address);
    if (position != positions.end()) by_position.children.emplace(position->second, std::move(of_param));
  }
  *state = std::move(by_position);
}

}  // namespace apex::amp::detail
