#pragma once

#include <map>
#include <string>
#include <string_view>

namespace apex::opt_levels {

namespace detail {
struct CastReader;
}

/// How the cast engine casts the floating-point tensors among an operator's arguments. "16-bit" is the level's type: FP16 at
/// O1, BF16 at O4.
enum class CastPolicy : unsigned char {
  none,           ///< no cast, like an operator that is not listed
  half,           ///< all to 16 bits, weights through the cache (Apex: FP16_FUNCS)
  float32,        ///< all to FP32 (FP32_FUNCS)
  promote,        ///< a mix of 16 bits and FP32 to FP32 (CASTS)
  sequence,       ///< as promote, for the elements of a list: cat, stack (SEQUENCE_CASTS)
  match_self,     ///< the other arguments to the type of the first tensor
  float_inplace,  ///< in-place operator: an error for a 16-bit self, the other arguments to FP32
  banned,         ///< an error if any argument is 16-bit (BANNED_FUNCS)
  opaque,         ///< no cast, and none for the operators that the operator calls
  widen,          ///< 16-bit arguments to FP32, or to FP64 if another argument is FP64
  follow_weights  ///< `match` only: FP32 arguments to the type of the 16-bit arguments after the first
};

/// Which operators are cast, and how. The default is `opt_levels/casts.yaml`: Apex's lists as LibTorch operators.
///
/// Operators have the names of LibTorch's schemas: `aten::add.Tensor`. A name without an overload, `aten::sum`, stands for all
/// overloads except those that write to `out`. A name with an overload takes precedence.
class CastLists {
 public:
  /// The lists that are built into the library.
  static const CastLists& built_in();
  /// Errors: RuntimeError if the file cannot be read; otherwise as `from_yaml_string`.
  static CastLists from_yaml_file(const std::string& path);
  /// Reads a map. `base: built_in` (default) starts from the built-in lists, `base: none` from nothing; `extensions: false`
  /// leaves out the entries beyond Apex's lists. `casts` and `match` are maps of policies, each with a list of operators. A
  /// policy replaces the operator's policy in the base; a name without overload replaces the policies of all its overloads.
  /// Errors, each with source, line and column: ValueError for text that is no such YAML, an unknown key or policy, a name that
  /// is not `namespace::operator[.overload]`, and an operator that is named twice.
  static CastLists from_yaml_string(const std::string& text, const std::string& source_name = "<string>");
  /// The complete lists, with `base: none`. `from_yaml_string` reads them back as equal lists.
  std::string to_yaml() const;

  /// Policies at O1 and O4, by operator name.
  const std::map<std::string, CastPolicy>& casts() const { return casts_; }
  /// Policies at O2, O3, O5 and O6. They apply in a handle's forward, in the forward of the original model, and outside of
  /// both.
  /// - `half`: casts FP32 arguments to the type of the 16-bit arguments.
  /// - `follow_weights`: casts FP32 arguments to the type of the 16-bit arguments after the first argument, which is the input.
  /// - `match_self`: casts the other arguments to the type of the first tensor.
  /// - `promote`: casts a mix of types to FP32.
  /// - `float32`: casts every argument to FP32. In a handle's forward it acts as `promote`: arguments that are all 16-bit stay.
  /// - `widen`: casts 16-bit arguments to FP32 or FP64, as in `casts`.
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
