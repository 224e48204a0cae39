// What a kernel uses of the GPU, for the host's compiler: threads, run one after another, and conversions of
// float16.

#include <cmath>
#include <cstring>

#define __global__
#define __device__
#define __forceinline__ inline
#define __align__(n) alignas(n)

struct Place { unsigned x, y, z; };
static Place blockIdx, threadIdx, blockDim, gridDim;

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

static inline float __uint_as_float(unsigned bits) { float real; std::memcpy(&real, &bits, 4); return real; }
static inline unsigned __float_as_uint(float real) { unsigned bits; std::memcpy(&bits, &real, 4); return bits; }
static inline float widen(unsigned short bits) { _Float16 half; std::memcpy(&half, &bits, 2); return (float)half; }
static inline unsigned short narrow(float real) {
    _Float16 half = (_Float16)real;
    unsigned short bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}

extern "C" void stand(unsigned block, unsigned row, unsigned thread, unsigned blocks, unsigned threads) {
    blockIdx = {block, row, 0};
    threadIdx = {thread, 0, 0};
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
}
