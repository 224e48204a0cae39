// MXNet's 2-bit and 1-bit gradient compression. A thread computes one byte of codes: four values of two bits,
// or eight values of one bit. The first value is in the highest bits. Bytes of the last word without a value
// are zero. A thread of `decode_sum` computes one value.

template <int N> static __device__ __forceinline__ void load(float* into, const float* from, u64 first, u64 len) {
    if (first + N <= len && aligned(from)) {
#pragma unroll
        for (int j = 0; j < N; j += 4) *(float4*)(into + j) = *(const float4*)(from + first + j);
    } else {
#pragma unroll
        for (int j = 0; j < N; j++) into[j] = first + j < len ? from[first + j] : 0.0f;
    }
}

template <int N> static __device__ __forceinline__ void store(float* to, const float* from, u64 first, u64 len) {
    if (first + N <= len && aligned(to)) {
#pragma unroll
        for (int j = 0; j < N; j += 4) *(float4*)(to + first + j) = *(const float4*)(from + j);
    } else {
#pragma unroll
        for (int j = 0; j < N; j++)
            if (first + j < len) to[first + j] = from[j];
    }
}

extern "C" __global__ void quantise_2bit(u8* codes, float* residual, const float* gradient, float threshold, u64 len) {
    u64 bytes = (len + 15) / 16 * 4;
    for (u64 i = first_index(); i < bytes; i += stride()) {
        __align__(16) float left[4];
        __align__(16) float given[4];
        load<4>(left, residual, i * 4, len);
        load<4>(given, gradient, i * 4, len);
        u32 byte = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float r = left[j] + given[j];
            u32 code = r >= threshold ? 3u : r <= -threshold ? 2u : 0u;
            left[j] = code == 3u ? r - threshold : code == 2u ? r + threshold : r;
            if (i * 4 + j < len) byte |= code << (6 - 2 * j);
        }
        store<4>(residual, left, i * 4, len);
        codes[i] = (u8)byte;
    }
}

extern "C" __global__ void quantise_1bit(u8* codes, float* residual, const float* gradient, float threshold, u64 len) {
    u64 bytes = (len + 31) / 32 * 4;
    for (u64 i = first_index(); i < bytes; i += stride()) {
        __align__(16) float left[8];
        __align__(16) float given[8];
        load<8>(left, residual, i * 8, len);
        load<8>(given, gradient, i * 8, len);
        u32 byte = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float r = left[j] + given[j];
            u32 code = r > threshold ? 1u : 0u;
            left[j] = code ? r - 1.0f : r + 1.0f;
            if (i * 8 + j < len) byte |= code << (7 - j);
        }
        store<8>(residual, left, i * 8, len);
        codes[i] = (u8)byte;
    }
}

extern "C" __global__ void add_dequantised_2bit(float* sum, const u8* codes, float threshold, u64 len) {
    for (u64 i = first_index(); i * 4 < len; i += stride()) {
        __align__(16) float total[4];
        load<4>(total, sum, i * 4, len);
        u32 byte = codes[i];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 code = byte >> (6 - 2 * j) & 3u;
            total[j] = total[j] + (code == 3u ? threshold : code == 2u ? -threshold : 0.0f);
        }
        store<4>(sum, total, i * 4, len);
    }
}

extern "C" __global__ void add_dequantised_1bit(float* sum, const u8* codes, u64 len) {
    for (u64 i = first_index(); i * 8 < len; i += stride()) {
        __align__(16) float total[8];
        load<8>(total, sum, i * 8, len);
        u32 byte = codes[i];
#pragma unroll
        for (int j = 0; j < 8; j++) total[j] = total[j] + (byte >> (7 - j) & 1u ? 1.0f : -1.0f);
        store<8>(sum, total, i * 8, len);
    }
}

// A block of 32 sums has `bits` words. Bit i of word j is bit j of the number that is stored for sum i.
extern "C" __global__ void decode_sum(
    float* values, const u32* sums, u32 bits, int factor, int count, float unit, u64 len) {
    for (u64 i = first_index(); i < len; i += stride()) {
        const u32* block = sums + i / 32 * bits;
        u32 number = 0;
        for (u32 j = 0; j < bits; j++) number |= (block[j] >> (i % 32) & 1u) << j;
        values[i] = (float)((int)number * factor - count) * unit;
    }
}
