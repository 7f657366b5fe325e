#include "kernels/xentropy/cpu/make_rows.h"

namespace apex::kernels::xentropy::cpu {

constexpr RowTable kAvx512Rows = make_rows();

}  // namespace apex::kernels::xentropy::cpu
