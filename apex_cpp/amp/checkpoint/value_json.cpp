#include <apex_cpp/amp/checkpoint/value_json.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

namespace apex::amp::detail {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;  // of nested archives and lists; torch's own archives nest up to 5 levels

// The allowed element types of a list, by name.
const std::map<std::string, c10::TypePtr>& list_types() {
  static const std::map<std::string, c10::TypePtr> types = {{"tensor", c10::TensorType::get()},
                                                            {"double", c10::FloatType::get()},
                                                            {"int", c10::IntType::get()},
                                                            {"bool", c10::BoolType::get()},
                                                            {"string", c10::StringType::get()}};
  return types;
}

std::string name_of_type(const c10::TypePtr& type, const std::string& path) {
  for (const auto& [name, of_list] : list_types()) {
    if (*of_list == *type) return name;
  }
  C10_THROW_ERROR(TypeError, "a checkpoint cannot hold '" + path + "', a list of " + type->repr_str() + ".");
}

json to_json(const c10::IValue& value, const std::string& path, const PutTensor& put);

json elements_to_json(c10::ArrayRef<c10::IValue> elements, const std::string& path, const PutTensor& put) {
  json list = json::array();
  for (size_t i = 0; i < elements.size(); ++i) list.push_back(to_json(elements[i], path + "/" + std::to_string(i), put));
  return list;
}

json to_json(const c10::IValue& value, const std::string& path, const PutTensor& put) {
  if (value.isNone()) return {{"none", nullptr}};
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return {{"tensor", tensor.defined() ? json(put(path, tensor)) : json(nullptr)}};
  }
  if (value.isDouble()) return {{"double", number_to_json(value.toDouble())}};
  if (value.isInt()) return {{"int", value.toInt()}};
  if (value.isBool()) return {{"bool", value.toBool()}};
  if (value.isString()) return {{"string", value.toStringRef()}};
  if (value.isTuple()) return {{"tuple", elements_to_json(value.toTupleRef().elements(), path, put)}};
  if (value.isList()) {
    const auto list = value.toList();
    return {{"list", elements_to_json(list.vec(), path, put)}, {"of", name_of_type(list.elementType(), path)}};
  }
  C10_THROW_ERROR(TypeError, "a checkpoint cannot hold '" + path + "', a " + value.tagKind() + ".");
}

const json& only_member(const json& object, std::string& key) {
  TORCH_CHECK(object.is_object() && !object.empty(), "a value without a type.");
  const auto first = object.begin();
  key = first.key();
  return first.value();
}

c10::IValue value_from_json(const json& object, const GetTensor& get, int depth);

std::vector<c10::IValue> elements_from_json(const json& list, const GetTensor& get, int depth) {
  TORCH_CHECK(list.is_array(), "a value of the type list that is not a list.");
  std::vector<c10::IValue> elements;
  for (const auto& element : list) elements.push_back(value_from_json(element, get, depth + 1));
  return elements;
}

c10::IValue list_from_json(const json& object, const GetTensor& get, int depth) {
  const auto type = list_types().find(object.at("of").get<std::string>());
  TORCH_CHECK(type != list_types().end(), "a list of an unknown type.");
  c10::impl::GenericList list(type->second);
  for (auto& element : elements_from_json(object.at("list"), get, depth)) {
    TORCH_CHECK(element.type()->isSubtypeOf(*type->second), "a list with an element of another type.");
    list.push_back(std::move(element));
  }
  return list;
}

c10::IValue value_from_json(const json& object, const GetTensor& get, int depth) {
  TORCH_CHECK(depth < kMaxDepth, "values nested too deeply.");
  std::string type;
  const json& value = only_member(object, type);
  if (type == "list") return list_from_json(object, get, depth);
  TORCH_CHECK(object.size() == 1, "a value of several types.");
  if (type == "none") return {};
  if (type == "tensor") return value.is_null() ? at::Tensor() : get(value.get<std::string>());
  if (type == "double") return number_from_json(value);
  if (type == "int") return integer_from_json(value);
  if (type == "bool") return value.get<bool>();
  if (type == "string") return value.get<std::string>();
  TORCH_CHECK(type == "tuple", "a value of the unknown type '", type, "'.");
  return c10::ivalue::Tuple::create(elements_from_json(value, get, depth));
}

ArchiveTree tree_from_json(const json& object, const GetTensor& get, int depth) {
  TORCH_CHECK(depth < kMaxDepth, "archives nested too deeply.");
  ArchiveTree tree;
  for (const auto& item : object.at("values").items()) tree.values[item.key()] = value_from_json(item.value(), get, depth);
  for (const auto& item : object.at("archives").items()) {
    tree.children[item.key()] = tree_from_json(item.value(), get, depth + 1);
  }
  return tree;
}

}  // namespace

json to_json(const ArchiveTree& tree, const std::string& path, const PutTensor& put) {
  json values = json::object(), archives = json::object();
  for (const auto& [key, value] : tree.values) values[key] = to_json(value, path + "/" + key, put);
  for (const auto& [key, child] : tree.children) archives[key] = to_json(child, path + "/" + key, put);
  return {{"values", std::move(values)}, {"archives", std::move(archives)}};
}

ArchiveTree tree_from_json(const json& object, const GetTensor& get) { return tree_from_json(object, get, 0); }

json to_json(const MetadataValue& value) {
  return std::visit(
      [](const auto& held) -> json {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, bool>) {
          return {{"bool", held}};
        } else if constexpr (std::is_same_v<T, int64_t>) {
          return {{"int", held}};
        } else if constexpr (std::is_same_v<T, double>) {
          return {{"double", number_to_json(held)}};
        } else {
          return {{"string", held}};
        }
      },
      value.variant());
}

MetadataValue metadata_from_json(const json& object) {
  const auto value = value_from_json(
      object, [](const auto&) { return at::Tensor(); }, 0);
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  TORCH_CHECK(value.isString(), "metadata of an unknown type.");
  return value.toStringRef();
}

json number_to_json(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

double number_from_json(const json& value) {
  if (value.is_number()) return value.get<double>();
  const auto text = value.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  TORCH_CHECK(text == "inf" || text == "-inf", "'", text, "' in place of a number.");
  return text == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

int64_t integer_from_json(const json& value) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= std::numeric_limits<int64_t>::max());
  TORCH_CHECK(fits, value.dump().substr(0, 40), " in place of a whole number.");
  return value.get<int64_t>();
}

}  // namespace apex::amp::detail
