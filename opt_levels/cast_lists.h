#pragma once

#include <map>
#include <string>
#include <string_view>

namespace apex::opt_levels {

namespace detail {
struct CastReader;
}

/// What the cast engine does to the floating-point tensors among an operator's arguments. "16-bit" is the level's type: FP16 at
/// O1, BF16 at O4.
enum class CastPolicy : unsigned char {
  none,           ///< nothing; the operator is as if it were not listed
  half,           ///< all to 16 bits, weights through the cache (Apex: FP16_FUNCS)
  float32,        ///< all to FP32 (FP32_FUNCS)
  promote,        ///< a mix of 16 bits and FP32 to FP32 (CASTS)
  sequence,       ///< the same for the elements of a list: cat, stack (SEQUENCE_CASTS)
  match_self,     ///< the others to the type of the tensor that comes first
  float_inplace,  ///< in place: an error for a 16-bit self, FP32 for the others
  banned,         ///< an error if any is 16-bit (BANNED_FUNCS)
  opaque,         ///< no casts of its own, and none for the operators it is made of
  widen,          ///< 16-bit arguments to FP32, or to FP64 where that is among them; the others stay
  follow_weights  ///< `match` alone: FP32 arguments to the type of the 16-bit ones behind the first argument
};

/// Which operators are cast, and how: by default `opt_levels/casts.yaml`, which holds Apex's lists as LibTorch operators.
///
/// An operator is named as in LibTorch's schemas, `aten::add.Tensor`; without an overload, `aten::sum` stands for all of its
/// overloads but those that write to `out`. The more precise name wins.
class CastLists {
 public:
  /// The lists that are built into the library.
  static const CastLists& built_in();
  /// Errors: RuntimeError if the file cannot be read; otherwise as `from_yaml_string`.
  static CastLists from_yaml_file(const std::string& path);
  /// A map of blocks. `base: built_in` (default) changes the built-in lists, `base: none` starts from nothing; `extensions:
  /// false` leaves out what is beyond Apex's lists. Then `casts` and `match`, each with policies as keys and lists of
  /// operators as values; an operator's policy here replaces the one it had, and a name without overload those of its
  /// overloads. Errors, each with source, line, column: ValueError for text that is no such YAML, an unknown key or policy, a
  /// name that is not `namespace::operator[.overload]`, an operator named twice.
  static CastLists from_yaml_string(const std::string& text, const std::string& source_name = "<string>");
  /// The lists whole, with `base: none`: `from_yaml_string` of it gives equal lists.
  std::string to_yaml() const;

  /// Policies at O1 and O4, by operator name.
  const std::map<std::string, CastPolicy>& casts() const { return casts_; }
  /// Policies at O2, O3 and O5, in a handle's forward, in that of the original model and outside of both: `half` casts FP32
  /// arguments to the type of the 16-bit ones among them, `follow_weights` to the type of those behind the first argument,
  /// which is the input, `match_self` casts the others to the type of the tensor that comes first, `promote` a mix of types to
  /// FP32, and `float32` every argument to FP32. In a handle's forward, where 16-bit arguments alone stay as they are,
  /// `float32` does as `promote`. `widen` is the same in all three.
  const std::map<std::string, CastPolicy>& match() const { return match_; }

  friend bool operator==(const CastLists& a, const CastLists& b) { return a.casts_ == b.casts_ && a.match_ == b.match_; }
  friend bool operator!=(const CastLists& a, const CastLists& b) { return !(a == b); }

 private:
  friend struct detail::CastReader;

  std::map<std::string, CastPolicy> casts_;
  std::map<std::string, CastPolicy> match_;
};

/// The policy's name in YAML.
std::string_view policy_name(CastPolicy policy);

}  // namespace apex::opt_levels
