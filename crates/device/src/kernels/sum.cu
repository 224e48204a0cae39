// The sum of up to eight buffers, in their order. float16 and bfloat16 values are added in float and rounded
// once.

struct Addends { const void* at[8]; };

template <typename T> struct __align__(16) Pack { T value[16 / sizeof(T)]; };

template <typename T>
static __device__ __forceinline__ void sum(T* to, const Addends& addends, int count, u64 len) {
    typedef typename Element<T>::Real R;
    const u64 per_pack = 16 / sizeof(T);
    bool packed = aligned(to);
    for (int k = 0; k < count; k++) packed = packed && aligned(addends.at[k]);
    u64 packs = packed ? len / per_pack : 0;
    for (u64 i = first_index(); i < packs; i += stride()) {
        R total[16 / sizeof(T)];
        Pack<T> next = ((const Pack<T>*)addends.at[0])[i];
#pragma unroll
        for (int j = 0; j < per_pack; j++) total[j] = Element<T>::load(next.value[j]);
        for (int k = 1; k < count; k++) {
            next = ((const Pack<T>*)addends.at[k])[i];
#pragma unroll
            for (int j = 0; j < per_pack; j++) total[j] = Plus<R>::of(total[j], Element<T>::load(next.value[j]));
        }
#pragma unroll
        for (int j = 0; j < per_pack; j++) next.value[j] = Element<T>::store(total[j]);
        ((Pack<T>*)to)[i] = next;
    }
    for (u64 i = packs * per_pack + first_index(); i < len; i += stride()) {
        R total = Element<T>::load(((const T*)addends.at[0])[i]);
        for (int k = 1; k < count; k++) total = Plus<R>::of(total, Element<T>::load(((const T*)addends.at[k])[i]));
        to[i] = Element<T>::store(total);
    }
}

#define SUM(NAME, T) \
    extern "C" __global__ void sum_##NAME(T* to, Addends addends, int count, u64 len) { sum<T>(to, addends, count, len); }

SUM(f32, float)
SUM(f64, double)
SUM(f16, F16)
SUM(bf16, BF16)
SUM(i8, signed char)
SUM(u8, u8)
SUM(i32, int)
SUM(i64, long long)
