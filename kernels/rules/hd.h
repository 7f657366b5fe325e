#pragma once

// HD marks a function for host and device, DEVICE_BODY one that is a part of a kernel: with a CUDA compiler it is code for the
// device only, elsewhere, where tests run it, ordinary code. UNROLL stands before a loop that is to be unrolled on a device:
// what its index selects can be in registers then. ROLLED stands before one that is to stay a loop: it is compiled once.
#ifdef __CUDACC__
#define HD __host__ __device__
#define DEVICE_BODY __device__
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#else
#define HD
#define DEVICE_BODY
#define UNROLL
#define ROLLED
#endif
