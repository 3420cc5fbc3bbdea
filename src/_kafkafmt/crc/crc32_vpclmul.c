/* The CRC kernel for x86-64 with AVX-512 and VPCLMULQDQ: folds 64 bytes with two multiplications.
 *
 * Data is divided into chunks of 64 bytes from its end, so that the first chunk is the short one. Zeros before data do not
 * change a remainder, and a masked load supplies them without reading the bytes before. The initial state, ones, is added to
 * the first four bytes. Four small ranges are computed together, and share the last steps with one lane each. */
#include "crc32_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "crc32_fold.h"

#define KERNEL __attribute__((target("avx512f,avx512bw,avx512vl,vpclmulqdq,pclmul,sse4.1")))
#define INLINE_KERNEL static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,vpclmulqdq,pclmul,sse4.1")))

enum {
    CHUNK = 64,
    SMALL = 4 * CHUNK,
    STATE_LENGTH = 4,
};

/* The initial state with zeros around it: in a read from CHUNK - n it begins at byte n. */
static const uint8_t INITIAL_STATE[3 * CHUNK] = {[CHUNK] = 0xff, 0xff, 0xff, 0xff};

INLINE_KERNEL __m512i constant(const uint64_t pair[2])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)pair));
}

/* (a moved forward by the distance of the constant) + next. */
INLINE_KERNEL __m512i fold(__m512i a, __m512i distance, __m512i next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(a, distance, 0x00), _mm512_clmulepi64_epi128(a, distance, 0x11),
                                     next, 0x96);
}

/* Folds the chunks of data, at least one, into one. */
INLINE_KERNEL __m512i fold_small(const struct kf_crc_fold *f, const uint8_t *data, size_t size)
{
    const size_t leading = -size % CHUNK; /* zeros before data */
    const uintptr_t start = (uintptr_t)data - leading; /* may be before the buffer: an address, not a pointer */
    const uint8_t *initial_state = INITIAL_STATE + CHUNK - leading;
    const __m512i first = _mm512_maskz_loadu_epi8(UINT64_MAX << leading, (const void *)start);
    __m512i sum = _mm512_xor_si512(first, _mm512_loadu_si512(initial_state));
    if (leading + size == CHUNK) return sum;

    const __m512i by_64_bytes = constant(f->by_64_bytes);
    const uint8_t *const end = data + size;
    data += CHUNK - leading;
    sum = fold(sum, by_64_bytes, _mm512_xor_si512(_mm512_loadu_si512(data), _mm512_loadu_si512(initial_state + CHUNK)));
    for (data += CHUNK; data < end; data += CHUNK) sum = fold(sum, by_64_bytes, _mm512_loadu_si512(data));
    return sum;
}

/* Moves four lanes to their common end, so that they can be added. */
INLINE_KERNEL __m512i align_lanes(const struct kf_crc_fold *f, __m512i a)
{
    return fold(a, _mm512_loadu_si512(f->lanes), _mm512_setzero_si512());
}

INLINE_KERNEL uint32_t finish(const struct kf_crc_fold *f, __m512i a)
{
    const __m512i lanes = align_lanes(f, a);
    const __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64(lanes, 1));
    const __m128i sum = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i reduction = _mm_loadu_si128((const __m128i *)f->reduction);
    const __m128i quotient = _mm_clmulepi64_si128(sum, reduction, 0x00);
    const __m128i remainder = _mm_xor_si128(sum, _mm_clmulepi64_si128(quotient, reduction, 0x10));
    return ~(uint32_t)_mm_extract_epi32(remainder, 2);
}

/* finish() for four ranges. After the lanes of a range are added, it takes one lane. */
INLINE_KERNEL void finish_4(const struct kf_crc_fold *f, const __m512i sums[4], uint32_t crcs[4])
{
    const __m512i a = align_lanes(f, sums[0]), b = align_lanes(f, sums[1]);
    const __m512i c = align_lanes(f, sums[2]), d = align_lanes(f, sums[3]);
    const __m512i ab = _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
    const __m512i cd = _mm512_xor_si512(_mm512_shuffle_i64x2(c, d, 0x44), _mm512_shuffle_i64x2(c, d, 0xee));
    const __m512i sum = _mm512_xor_si512(_mm512_shuffle_i64x2(ab, cd, 0x88), _mm512_shuffle_i64x2(ab, cd, 0xdd));
    const __m512i reduction = constant(f->reduction);
    const __m512i quotient = _mm512_clmulepi64_epi128(sum, reduction, 0x00);
    const __m512i product = _mm512_clmulepi64_epi128(quotient, reduction, 0x10);
    const __m512i remainder = _mm512_ternarylogic_epi64(sum, product, product, 0xc3); /* ~(sum ^ product) */
    const __m512i dword_2_of_lanes = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 14, 10, 6, 2);
    _mm_storeu_si128((__m128i *)crcs, _mm512_castsi512_si128(_mm512_permutexvar_epi32(dword_2_of_lanes, remainder)));
}

INLINE_KERNEL uint32_t crc_of_small(const struct kf_crc_fold *f, const uint8_t *data, size_t size)
{
    const uint32_t crc = finish(f, fold_small(f, data, size));
    /* Fewer than four bytes leave a part of the initial state, which is added here. */
    return size < STATE_LENGTH ? crc ^ UINT32_MAX >> 8 * size : crc;
}

INLINE_KERNEL uint32_t crc_of_large(const struct kf_crc_fold *f, const uint8_t *data, size_t size)
{
    const __m512i by_256_bytes = constant(f->by_256_bytes), by_64_bytes = constant(f->by_64_bytes);
    const size_t head = size % CHUNK;
    const uint8_t *const end = data + size;
    const __m512i first = fold_small(f, data, head + CHUNK);
    data += head;
    __m512i a = first, b = _mm512_loadu_si512(data + CHUNK);
    __m512i c = _mm512_loadu_si512(data + 2 * CHUNK), d = _mm512_loadu_si512(data + 3 * CHUNK);
    for (data += 4 * CHUNK; end - data >= 4 * CHUNK; data += 4 * CHUNK) {
        a = fold(a, by_256_bytes, _mm512_loadu_si512(data));
        b = fold(b, by_256_bytes, _mm512_loadu_si512(data + CHUNK));
        c = fold(c, by_256_bytes, _mm512_loadu_si512(data + 2 * CHUNK));
        d = fold(d, by_256_bytes, _mm512_loadu_si512(data + 3 * CHUNK));
    }
    __m512i sum = fold(fold(fold(a, by_64_bytes, b), by_64_bytes, c), by_64_bytes, d);
    for (; data < end; data += CHUNK) sum = fold(sum, by_64_bytes, _mm512_loadu_si512(data));
    return finish(f, sum);
}

INLINE_KERNEL uint32_t crc(const struct kf_crc_fold *f, const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    return size <= SMALL ? crc_of_small(f, data, size) : crc_of_large(f, data, size);
}

INLINE_KERNEL void crc_many(const struct kf_crc_fold *f, uint32_t (*crc_of)(const uint8_t *, size_t),
                            const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    size_t i = 0;
    while (count - i >= 4) {
        __m512i sums[4];
        size_t n = 0;
        while (n < 4 && sizes[i + n] >= STATE_LENGTH && sizes[i + n] <= SMALL) {
            sums[n] = fold_small(f, data[i + n], sizes[i + n]);
            n++;
        }
        if (n == 4) {
            finish_4(f, sums, crcs + i);
            i += 4;
        } else {
            for (size_t last = i + n; i <= last; i++) crcs[i] = crc_of(data[i], sizes[i]);
        }
    }
    for (; i < count; i++) crcs[i] = crc_of(data[i], sizes[i]);
}

KERNEL static uint32_t crc32(const uint8_t *data, size_t size)
{
    return crc(&KF_CRC32_FOLD, data, size);
}

KERNEL static uint32_t crc32c(const uint8_t *data, size_t size)
{
    return crc(&KF_CRC32C_FOLD, data, size);
}

KERNEL static void crc32_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    crc_many(&KF_CRC32_FOLD, crc32, data, sizes, crcs, count);
}

KERNEL static void crc32c_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    crc_many(&KF_CRC32C_FOLD, crc32c, data, sizes, crcs, count);
}

const struct kf_crc_kernel *kf_crc_vpclmul(void)
{
    static const struct kf_crc_kernel KERNEL_VPCLMUL = {
        "vpclmul", "x86-64 vpclmulqdq avx512", crc32, crc32c, crc32_many, crc32c_many,
    };
    __builtin_cpu_init();
    const int available = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq") &&
                          __builtin_cpu_supports("pclmul");
    return available ? &KERNEL_VPCLMUL : NULL;
}

#else

const struct kf_crc_kernel *kf_crc_vpclmul(void)
{
    return NULL;
}

#endif
