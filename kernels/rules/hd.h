#pragma once

// HD marks a function for host and device. Without a CUDA compiler it means nothing.
#ifdef __CUDACC__
#define HD __host__ __device__
#else
#define HD
#endif
