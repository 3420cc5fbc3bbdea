/* The CRC kernel for any processor: slicing by 8 (Kounavis and Berry, 2005), eight table lookups for eight bytes.
 *
 * table[s][v] is the remainder of byte v followed by s zero bytes. It is linear in v, so the eight remainders of single bits
 * give a slice. The preprocessor makes the tables as constants: nothing is built at run time, and no thread can see a table
 * that is half built. */
#include <string.h>

#include "crc32_kernel.h"

#define ENTRY(v, b0, b1, b2, b3, b4, b5, b6, b7)                                                                              \
    (((v) & 1 ? b0 : 0) ^ ((v) & 2 ? b1 : 0) ^ ((v) & 4 ? b2 : 0) ^ ((v) & 8 ? b3 : 0) ^ ((v) & 16 ? b4 : 0) ^                \
     ((v) & 32 ? b5 : 0) ^ ((v) & 64 ? b6 : 0) ^ ((v) & 128 ? b7 : 0))
#define ENTRIES_4(v, ...)                                                                                                     \
    ENTRY(v, __VA_ARGS__), ENTRY(v + 1, __VA_ARGS__), ENTRY(v + 2, __VA_ARGS__), ENTRY(v + 3, __VA_ARGS__)
#define ENTRIES_16(v, ...)                                                                                                    \
    ENTRIES_4(v, __VA_ARGS__), ENTRIES_4(v + 4, __VA_ARGS__), ENTRIES_4(v + 8, __VA_ARGS__), ENTRIES_4(v + 12, __VA_ARGS__)
#define ENTRIES_64(v, ...)                                                                                                    \
    ENTRIES_16(v, __VA_ARGS__), ENTRIES_16(v + 16, __VA_ARGS__), ENTRIES_16(v + 32, __VA_ARGS__), ENTRIES_16(v + 48, __VA_ARGS__)
#define SLICE(...)                                                                                                            \
    ENTRIES_64(0, __VA_ARGS__), ENTRIES_64(64, __VA_ARGS__), ENTRIES_64(128, __VA_ARGS__), ENTRIES_64(192, __VA_ARGS__)

/* P = 0xedb88320 (bits reflected). */
static const uint32_t CRC32_TABLE[8][256] = {
    {SLICE(0x77073096, 0xee0e612c, 0x076dc419, 0x0edb8832, 0x1db71064, 0x3b6e20c8, 0x76dc4190, 0xedb88320)},
    {SLICE(0x191b3141, 0x32366282, 0x646cc504, 0xc8d98a08, 0x4ac21251, 0x958424a2, 0xf0794f05, 0x3b83984b)},
    {SLICE(0x01c26a37, 0x0384d46e, 0x0709a8dc, 0x0e1351b8, 0x1c26a370, 0x384d46e0, 0x709a8dc0, 0xe1351b80)},
    {SLICE(0xb8bc6765, 0xaa09c88b, 0x8f629757, 0xc5b428ef, 0x5019579f, 0xa032af3e, 0x9b14583d, 0xed59b63b)},
    {SLICE(0x3d6029b0, 0x7ac05360, 0xf580a6c0, 0x30704bc1, 0x60e09782, 0xc1c12f04, 0x58f35849, 0xb1e6b092)},
    {SLICE(0xcb5cd3a5, 0x4dc8a10b, 0x9b914216, 0xec53826d, 0x03d6029b, 0x07ac0536, 0x0f580a6c, 0x1eb014d8)},
    {SLICE(0xa6770bb4, 0x979f1129, 0xf44f2413, 0x33ef4e67, 0x67de9cce, 0xcfbd399c, 0x440b7579, 0x8816eaf2)},
    {SLICE(0xccaa009e, 0x4225077d, 0x844a0efa, 0xd3e51bb5, 0x7cbb312b, 0xf9766256, 0x299dc2ed, 0x533b85da)},
};

/* P = 0x82f63b78 (bits reflected). */
static const uint32_t CRC32C_TABLE[8][256] = {
    {SLICE(0xf26b8303, 0xe13b70f7, 0xc79a971f, 0x8ad958cf, 0x105ec76f, 0x20bd8ede, 0x417b1dbc, 0x82f63b78)},
    {SLICE(0x13a29877, 0x274530ee, 0x4e8a61dc, 0x9d14c3b8, 0x3fc5f181, 0x7f8be302, 0xff17c604, 0xfbc3faf9)},
    {SLICE(0xa541927e, 0x4f6f520d, 0x9edea41a, 0x38513ec5, 0x70a27d8a, 0xe144fb14, 0xc76580d9, 0x8b277743)},
    {SLICE(0xdd45aab8, 0xbf672381, 0x7b2231f3, 0xf64463e6, 0xe964b13d, 0xd725148b, 0xaba65fe7, 0x52a0c93f)},
    {SLICE(0x38116fac, 0x7022df58, 0xe045beb0, 0xc5670b91, 0x8f2261d3, 0x1ba8b557, 0x37516aae, 0x6ea2d55c)},
    {SLICE(0xef306b19, 0xdb8ca0c3, 0xb2f53777, 0x6006181f, 0xc00c303e, 0x85f4168d, 0x0e045beb, 0x1c08b7d6)},
    {SLICE(0x68032cc8, 0xd0065990, 0xa5e0c5d1, 0x4e2dfd53, 0x9c5bfaa6, 0x3d5b83bd, 0x7ab7077a, 0xf56e0ef4)},
    {SLICE(0x493c7d27, 0x9278fa4e, 0x211d826d, 0x423b04da, 0x847609b4, 0x0d006599, 0x1a00cb32, 0x34019664)},
};

static inline uint32_t load_little_endian_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static inline uint32_t crc(const uint32_t table[8][256], const uint8_t *data, size_t size)
{
    uint32_t state = UINT32_MAX;
    for (; size >= 8; data += 8, size -= 8) {
        const uint32_t low = load_little_endian_u32(data) ^ state;
        const uint32_t high = load_little_endian_u32(data + 4);
        state = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^ table[4][low >> 24] ^
                table[3][high & 0xff] ^ table[2][high >> 8 & 0xff] ^ table[1][high >> 16 & 0xff] ^ table[0][high >> 24];
    }
    for (; size > 0; data++, size--) state = table[0][(state ^ *data) & 0xff] ^ state >> 8;
    return ~state;
}

static uint32_t crc32(const uint8_t *data, size_t size)
{
    return crc(CRC32_TABLE, data, size);
}

static uint32_t crc32c(const uint8_t *data, size_t size)
{
    return crc(CRC32C_TABLE, data, size);
}

static void crc32_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    for (size_t i = 0; i < count; i++) crcs[i] = crc32(data[i], sizes[i]);
}

static void crc32c_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    for (size_t i = 0; i < count; i++) crcs[i] = crc32c(data[i], sizes[i]);
}

const struct kf_crc_kernel *kf_crc_portable(void)
{
    static const struct kf_crc_kernel KERNEL = {"portable", "portable", crc32, crc32c, crc32_many, crc32c_many};
    return &KERNEL;
}
