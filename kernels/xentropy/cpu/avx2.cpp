#include "kernels/xentropy/cpu/make_rows.h"

namespace apex::kernels::xentropy::cpu {

constexpr RowTable kAvx2Rows = make_rows();

}  // namespace apex::kernels::xentropy::cpu
