#include <apex_cpp/amp/checkpoint/safetensors_header.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

namespace apex::amp::detail {
namespace {

using Json = nlohmann::json;

constexpr const char* kMetadata = "__metadata__";
constexpr uint64_t kAlignment = 8;

struct DtypeName {
  c10::ScalarType dtype;
  const char* name;
};
constexpr DtypeName kDtypeNames[] = {
    {c10::ScalarType::Bool, "BOOL"},
    {c10::ScalarType::Byte, "U8"},
    {c10::ScalarType::Char, "I8"},
    {c10::ScalarType::Short, "I16"},
    {c10::ScalarType::UInt16, "U16"},
    {c10::ScalarType::Int, "I32"},
    {c10::ScalarType::UInt32, "U32"},
    {c10::ScalarType::Long, "I64"},
    {c10::ScalarType::UInt64, "U64"},
    {c10::ScalarType::Half, "F16"},
    {c10::ScalarType::BFloat16, "BF16"},
    {c10::ScalarType::Float, "F32"},
    {c10::ScalarType::Double, "F64"},
    {c10::ScalarType::ComplexFloat, "C64"},
    {c10::ScalarType::Float8_e5m2, "F8_E5M2"},
    {c10::ScalarType::Float8_e4m3fn, "F8_E4M3"},
    {c10::ScalarType::Float8_e5m2fnuz, "F8_E5M2FNUZ"},
    {c10::ScalarType::Float8_e4m3fnuz, "F8_E4M3FNUZ"},
    {c10::ScalarType::Float8_e8m0fnu, "F8_E8M0"},
    {c10::ScalarType::Float4_e2m1fn_x2, "F4"},
};

/// One element of torch's dtype holds two F4 values: in the last dimension the format counts values, torch counts elements.
bool is_packed(c10::ScalarType dtype) { return dtype == c10::ScalarType::Float4_e2m1fn_x2; }

std::optional<c10::ScalarType> dtype_named(const std::string& name) {
  for (const auto& known : kDtypeNames) {
    if (name == known.name) return known.dtype;
  }
  return std::nullopt;
}

std::string quoted_utf8(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    C10_THROW_ERROR(ValueError, c10::str("the text ", shown(text), " is not UTF-8. Text in safetensors files must be UTF-8."));
  }
}

/// Receives the header's parts from the JSON parser as they come. It builds only what the format has, so a deeply nested or
/// long text costs no memory.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& source) : source_(source) {}
  TensorHeader take() { return std::move(header_); }

  bool start_object(size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top) {
      place_ = name_ == kMetadata ? Place::metadata : Place::tensor;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& key) override {
    if (place_ == Place::top) {
      start_entry(std::move(key));
    } else if (place_ == Place::metadata) {
      check(header_.metadata.count(key) == 0, shown(key), " appears twice");
      key_ = std::move(key);
    } else {
      start_field(key);
    }
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      header_.metadata.emplace(std::move(key_), std::move(value));
    } else if (place_ == Place::tensor && field_ == Field::dtype) {
      const auto dtype = dtype_named(value);
      check(dtype.has_value(), "the dtype ", shown(value), " is not known");
      header_.tensors.back().dtype = *dtype;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::shape) {
      check(value <= uint64_t{std::numeric_limits<int64_t>::max()}, "the size ", value, " is too large");
      header_.tensors.back().shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::offsets) {
      check(offsets_ < 2, "data_offsets has more than two numbers");
      (offsets_++ == 0 ? header_.tensors.back().begin : header_.tensors.back().end) = value;
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::tensor && field_ == Field::shape) {
      place_ = Place::shape;
    } else if (place_ == Place::tensor && field_ == Field::offsets) {
      place_ = Place::offsets;
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    check(place_ == Place::shape || offsets_ == 2, "data_offsets has fewer than two numbers");
    place_ = Place::tensor;
    return true;
  }

  bool end_object() override {
    check(place_ != Place::tensor || fields_ == kAllFields, "dtype, shape or data_offsets is missing");
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(int64_t value) override { return unexpected(std::to_string(value).c_str()); }
  bool number_float(double, const std::string& text) override { return unexpected(text.substr(0, 40).c_str()); }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    C10_THROW_ERROR(Error, c10::str(source_, "its header is not valid JSON at byte ", position, "."));
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };
  enum class Field { dtype = 1, shape = 2, offsets = 4 };
  static constexpr int kAllFields = 7;

  void start_entry(std::string name) {
    name_ = std::move(name);
    fields_ = offsets_ = 0;
    if (name_ != kMetadata) {
      header_.tensors.push_back({name_, {}, {}, 0, 0});
    } else {
      check(!std::exchange(has_metadata_, true), "it appears twice");
    }
  }

  void start_field(const std::string& name) {
    field_ = name == "dtype" ? Field::dtype : name == "shape" ? Field::shape : Field::offsets;
    check(field_ != Field::offsets || name == "data_offsets", "the field ", shown(name), " is not known");
    check((fields_ & static_cast<int>(field_)) == 0, "the field ", shown(name), " appears twice");
    fields_ |= static_cast<int>(field_);
  }

  template <class... Text>
  void check(bool holds, const Text&... text) const {
    TORCH_CHECK(holds, source_, place_ == Place::outside ? "its header" : shown(name_), ": ", text..., ".");
  }
  bool unexpected(const char* what) const {
    check(false, "found ", what, ", which the format does not allow here");
    return false;
  }

  const std::string& source_;
  TensorHeader header_;
  Place place_ = Place::outside;
  std::string name_;  // the tensor's name, or kMetadata
  std::string key_;   // key in the metadata
  Field field_ = Field::dtype;
  int fields_ = 0;
  int offsets_ = 0;
  bool has_metadata_ = false;
};

/// The bytes of a tensor. The overflow check counts a size of zero as one, like torch's strides.
uint64_t bytes_of(const TensorInfo& info, const std::string& source) {
  int64_t most = static_cast<int64_t>(c10::elementSize(info.dtype));
  bool empty = false;
  for (const int64_t size : info.shape) {
    const bool overflows = __builtin_mul_overflow(most, std::max<int64_t>(size, 1), &most);
    TORCH_CHECK(!overflows, source, "tensor ", shown(info.name), ": its shape has more elements than can be counted.");
    empty = empty || size == 0;
  }
  return empty ? 0 : static_cast<uint64_t>(most);
}

void unpack_shape(TensorInfo& info, const std::string& source) {
  if (!is_packed(info.dtype)) return;
  TORCH_CHECK(!info.shape.empty() && info.shape.back() % 2 == 0, source, "tensor ", shown(info.name),
              ": F4 values come in pairs, but its last dimension is not even.");
  info.shape.back() /= 2;
}

void check_names(const std::vector<TensorInfo>& tensors, const std::string& source) {
  std::vector<const std::string*> names;
  names.reserve(tensors.size());
  for (const auto& info : tensors) names.push_back(&info.name);
  std::sort(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto same = std::adjacent_find(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a == *b; });
  if (same != names.end()) C10_THROW_ERROR(Error, c10::str(source, "tensor ", shown(**same), " appears twice."));
}

void check_offsets(const std::vector<TensorInfo>& tensors, uint64_t data_bytes, const std::string& source) {
  std::vector<const TensorInfo*> ordered;
  ordered.reserve(tensors.size());
  for (const auto& info : tensors) ordered.push_back(&info);
  std::sort(ordered.begin(), ordered.end(),
            [](const auto* a, const auto* b) { return std::tie(a->begin, a->end) < std::tie(b->begin, b->end); });
  uint64_t covered = 0;
  for (const auto* info : ordered) {
    const uint64_t bytes = bytes_of(*info, source);
    TORCH_CHECK(info->begin == covered, source, "tensor ", shown(info->name), ": its data starts at ", info->begin,
                ", the data before it ends at ", covered, ".");
    TORCH_CHECK(info->end >= info->begin && info->end - info->begin == bytes, source, "tensor ", shown(info->name),
                ": shape and dtype need ", bytes, " bytes, data_offsets are [", info->begin, ", ", info->end, "].");
    TORCH_CHECK(info->end <= data_bytes, source, "tensor ", shown(info->name), ": its data ends at ", info->end,
                ", the file's data at ", data_bytes, ". The file was cut short.");
    covered = info->end;
  }
  TORCH_CHECK(covered == data_bytes, source, "its tensors end at ", covered, ", its data at ", data_bytes, ".");
}

std::string entry_text(const TensorInfo& info) {
  auto shape = info.shape;
  if (is_packed(info.dtype)) {
    TORCH_CHECK_VALUE(!shape.empty(), "tensor ", shown(info.name), " holds a pair of F4 values, but is zero-dimensional.");
    shape.back() *= 2;
  }
  return quoted_utf8(info.name) + ":{\"dtype\":\"" + safetensors_name(info.dtype) + "\",\"shape\":" + Json(shape).dump() +
         ",\"data_offsets\":[" + std::to_string(info.begin) + "," + std::to_string(info.end) + "]}";
}

}  // namespace

const char* safetensors_name(c10::ScalarType dtype) {
  for (const auto& known : kDtypeNames) {
    if (dtype == known.dtype) return known.name;
  }
  return nullptr;
}

std::string shown(const std::string& name) {
  constexpr size_t kLongest = 100;
  const bool cut = name.size() > kLongest;
  return Json(name.substr(0, kLongest)).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) +
         (cut ? " (and so on)" : "");
}

std::string header_text(const TensorHeader& header) {
  std::string text = "{";
  if (!header.metadata.empty()) {
    text += quoted_utf8(kMetadata) + ":{";
    for (const auto& [key, value] : header.metadata) text += quoted_utf8(key) + ":" + quoted_utf8(value) + ",";
    text.back() = '}';
    text += ',';
  }
  for (const auto& info : header.tensors) text += entry_text(info) + ",";
  if (text.size() > 1) text.pop_back();
  text += '}';
  // Eight bytes with the header's length come first.
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  return text;
}

TensorHeader parse_header(const std::string& text, uint64_t data_bytes, const std::string& source) {
  TORCH_CHECK(text.compare(0, 1, "{") == 0 && text.find('\0') == std::string::npos, source, "its header is not a JSON object.");
  HeaderReader reader(source);
  Json::sax_parse(text, &reader);
  TensorHeader header = reader.take();
  check_names(header.tensors, source);
  for (auto& info : header.tensors) unpack_shape(info, source);
  check_offsets(header.tensors, data_bytes, source);
  return header;
}

}  // namespace apex::amp::detail
