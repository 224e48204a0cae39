// The element types: how each type is loaded and stored, and the type in which the kernels compute with it.
// The file includes no headers, so the compiler alone is enough. float16 and bfloat16 values are rounded to
// nearest even when they are stored, as on the host.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__
static __device__ __forceinline__ float widen(u16 half) {
    float real;
    asm("cvt.f32.f16 %0, %1;" : "=f"(real) : "h"(half));
    return real;
}
static __device__ __forceinline__ u16 narrow(float real) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(real));
    return half;
}
#endif

struct F16 { u16 bits; };
struct BF16 { u16 bits; };

template <typename T> struct Element {
    typedef T Real;
    static __device__ __forceinline__ T load(T value) { return value; }
    static __device__ __forceinline__ T store(T value) { return value; }
};

template <> struct Element<F16> {
    typedef float Real;
    static __device__ __forceinline__ float load(F16 value) { return widen(value.bits); }
    static __device__ __forceinline__ F16 store(float real) { return F16{narrow(real)}; }
};

template <> struct Element<BF16> {
    typedef float Real;
    static __device__ __forceinline__ float load(BF16 value) { return __uint_as_float((u32)value.bits << 16); }
    static __device__ __forceinline__ BF16 store(float real) {
        u32 bits = __float_as_uint(real);
        BF16 value;
        if ((bits & 0x7fffffffu) > 0x7f800000u) {
            value.bits = (u16)(bits >> 16 | 0x40u);
        } else {
            value.bits = (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        }
        return value;
    }
};

// Integers wrap, because they are added as unsigned numbers.
template <typename R> struct Plus {
    static __device__ __forceinline__ R of(R a, R b) { return a + b; }
};
template <> struct Plus<int> {
    static __device__ __forceinline__ int of(int a, int b) { return (int)((u32)a + (u32)b); }
};
template <> struct Plus<long long> {
    static __device__ __forceinline__ long long of(long long a, long long b) { return (long long)((u64)a + (u64)b); }
};

static __device__ __forceinline__ u64 first_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ __forceinline__ u64 stride() { return (u64)gridDim.x * blockDim.x; }
[[maybe_unused]] static __device__ __forceinline__ bool aligned(const void* at) { return ((u64)at & 15u) == 0; }
