#include "kernels/normalization/cpu/make_rows.h"

namespace apex::kernels::normalization::cpu {

constexpr RowTables kAvx512Rows = make_rows();

}  // namespace apex::kernels::normalization::cpu
