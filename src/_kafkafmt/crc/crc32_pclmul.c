/* The CRC kernel for x86-64 with SSE4.1 and PCLMULQDQ: folds 16 bytes with two multiplications, in four strands if there are
 * 64 bytes.
 *
 * Data is divided into blocks of 16 bytes from its end, so that the first block is the short one. Zeros before data do not
 * change a remainder, and a shuffle of the first 16 bytes supplies them. The initial state, ones, is added to the first four
 * bytes. The portable kernel computes ranges that are shorter than a block. */
#include "crc32_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "crc32_fold.h"

#define KERNEL __attribute__((target("pclmul,sse4.1")))
#define INLINE_KERNEL static inline __attribute__((always_inline, target("pclmul,sse4.1")))

enum {
    BLOCK = 16,
};

/* The initial state followed by zeros: a read from n skips its first n bytes. */
static const uint8_t INITIAL_STATE[2 * BLOCK] = {0xff, 0xff, 0xff, 0xff};

/* The indexes of a shuffle, if read from n: it gives a block of zeros followed by the first n bytes of its source. */
static const uint8_t FIRST_BYTES_LAST[2 * BLOCK] = {
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
};

INLINE_KERNEL __m128i load(const void *at)
{
    return _mm_loadu_si128((const __m128i *)at);
}

INLINE_KERNEL __m128i add(__m128i a, __m128i b)
{
    return _mm_xor_si128(a, b);
}

/* (a moved forward by the distance of the constant) + next. */
INLINE_KERNEL __m128i fold(__m128i a, __m128i distance, __m128i next)
{
    return add(add(_mm_clmulepi64_si128(a, distance, 0x00), next), _mm_clmulepi64_si128(a, distance, 0x11));
}

INLINE_KERNEL uint32_t finish(const struct kf_crc_fold *f, __m128i a)
{
    const __m128i reduction = load(f->reduction);
    const __m128i sum = add(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, load(f->lanes[3]), 0x00));
    const __m128i quotient = _mm_clmulepi64_si128(sum, reduction, 0x00);
    return ~(uint32_t)_mm_extract_epi32(add(sum, _mm_clmulepi64_si128(quotient, reduction, 0x10)), 2);
}

INLINE_KERNEL uint32_t crc(const struct kf_crc_fold *f, const uint8_t *data, size_t size)
{
    const uint8_t *const end = data + size;
    const size_t head = (size - 1) % BLOCK + 1;
    const __m128i first = add(load(data), load(INITIAL_STATE));
    __m128i sum = _mm_shuffle_epi8(first, load(FIRST_BYTES_LAST + head));
    data += head;
    if (data == end) return finish(f, sum);

    const __m128i by_16_bytes = load(f->by_16_bytes);
    sum = fold(sum, by_16_bytes, add(load(data), load(INITIAL_STATE + head)));
    data += BLOCK;
    if (end - data >= 7 * BLOCK) {
        const __m128i by_64_bytes = load(f->by_64_bytes);
        __m128i b = load(data), c = load(data + BLOCK), d = load(data + 2 * BLOCK);
        for (data += 3 * BLOCK; end - data >= 4 * BLOCK; data += 4 * BLOCK) {
            sum = fold(sum, by_64_bytes, load(data));
            b = fold(b, by_64_bytes, load(data + BLOCK));
            c = fold(c, by_64_bytes, load(data + 2 * BLOCK));
            d = fold(d, by_64_bytes, load(data + 3 * BLOCK));
        }
        sum = fold(fold(fold(sum, by_16_bytes, b), by_16_bytes, c), by_16_bytes, d);
    }
    for (; data < end; data += BLOCK) sum = fold(sum, by_16_bytes, load(data));
    return finish(f, sum);
}

KERNEL static uint32_t crc32(const uint8_t *data, size_t size)
{
    return size < BLOCK ? kf_crc_portable()->crc32(data, size) : crc(&KF_CRC32_FOLD, data, size);
}

KERNEL static uint32_t crc32c(const uint8_t *data, size_t size)
{
    return size < BLOCK ? kf_crc_portable()->crc32c(data, size) : crc(&KF_CRC32C_FOLD, data, size);
}

KERNEL static void crc32_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    for (size_t i = 0; i < count; i++) crcs[i] = crc32(data[i], sizes[i]);
}

KERNEL static void crc32c_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    for (size_t i = 0; i < count; i++) crcs[i] = crc32c(data[i], sizes[i]);
}

const struct kf_crc_kernel *kf_crc_pclmul(void)
{
    static const struct kf_crc_kernel KERNEL_PCLMUL = {
        "pclmul", "x86-64 pclmul+sse4.1", crc32, crc32c, crc32_many, crc32c_many,
    };
    __builtin_cpu_init();
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1") ? &KERNEL_PCLMUL : NULL;
}

#else

const struct kf_crc_kernel *kf_crc_pclmul(void)
{
    return NULL;
}

#endif
