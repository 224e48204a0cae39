// Up to 32 copies in one launch: a bucket is packed from its keys, or unpacked into them. Each row of blocks
// makes one copy.

struct Pairs { const u8* from[32]; u8* to[32]; u64 bytes[32]; };

extern "C" __global__ void copy_many(Pairs pairs) {
    const u8* from = pairs.from[blockIdx.y];
    u8* to = pairs.to[blockIdx.y];
    u64 bytes = pairs.bytes[blockIdx.y];
    u64 packs = aligned(from) && aligned(to) ? bytes / 16 : 0;
    for (u64 i = first_index(); i < packs; i += stride()) ((uint4*)to)[i] = ((const uint4*)from)[i];
    u64 words = (((u64)from | (u64)to) & 3u) == 0 ? bytes / 4 : packs * 4;
    for (u64 i = packs * 4 + first_index(); i < words; i += stride()) ((u32*)to)[i] = ((const u32*)from)[i];
    for (u64 i = words * 4 + first_index(); i < bytes; i += stride()) to[i] = from[i];
}
