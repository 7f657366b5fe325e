// The reference: rules and conversions for one value at a time.
#include "kernels/cpu/isa/make_table.h"
#include "kernels/rules/arithmetic.h"

namespace apex::kernels::cpu {
namespace {

template <class RealType>
struct OneByOne : Bytes<1> {
  using Real = RealType;
  using Vector = RealType;
  static constexpr int64_t kLanes = 1;
  using OfBFloat16 = OneByOne;

  template <class Element>
  static Vector load(const Element* from) {
    return rules::load<Real>(*from);
  }

  template <class Element>
  static void store(Vector v, Element* to) {
    *to = rules::store<Element>(v);
  }

  static void fence() {}

  struct Wide {
    using Vector = double;
    static double load(const double* from) { return *from; }
    static void store(double v, double* to) { *to = v; }
    static double load_first(const double* from, int64_t) { return *from; }
    static void store_first(double v, double* to, int64_t) { *to = v; }
  };

  // Required by the templates but never called, like those of Wide: a vector of one value has no part.
  static Vector load_first(const Real* from, int64_t) { return *from; }
  static void store_first(Vector v, Real* to, int64_t) { *to = v; }
};

}  // namespace

constexpr KernelTable kPortableKernels = make_table<OneByOne<float>>();
constexpr DoubleRules kDoubleKernels = make_rules<OneByOne<double>>(static_cast<const DoubleRules*>(nullptr));

}  // namespace apex::kernels::cpu
