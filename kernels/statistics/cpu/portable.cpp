#include "kernels/statistics/cpu/make_blocks.h"

namespace apex::kernels::statistics::cpu {

constexpr BlockTable kPortableBlocks = {add_block<float>, add_block<double>};

}  // namespace apex::kernels::statistics::cpu
