/* The CRC kernel for aarch64 with the CRC32 and PMULL instructions: eight bytes per instruction. In large ranges it works on
 * three strands at a time, because each instruction of a strand waits for the one before it.
 *
 * Instructions are inline assembly: intrinsics for them depend on the compiler, its version and its flags. */
#include "crc32_kernel.h"

#if defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && (defined(__linux__) || defined(__APPLE__))
#include <arm_neon.h>
#include <string.h>

#if defined(__linux__)
#include <sys/auxv.h>
#endif

enum {
    STRAND = 1024,
};

/* The powers that move a strand's remainder over the strands after it: x^(8n - 33) mod P for n bytes, bits reflected. The
 * product lacks one bit, and the instruction that takes its remainder adds 32. */
struct shifts {
    uint32_t by_two_strands, by_one_strand;
};

static const struct shifts CRC32_SHIFTS = {0x7b4aa8b7, 0xbbf2f6d6};
static const struct shifts CRC32C_SHIFTS = {0xa51b6135, 0x170076fa};

typedef uint32_t (*step_8_bytes)(uint32_t state, uint64_t value);
typedef uint32_t (*step_byte)(uint32_t state, uint32_t value);

#define INLINE static inline __attribute__((always_inline))
#define STEP(name, instruction, operand, type)                                                                               \
    INLINE uint32_t name(uint32_t state, type value)                                                                          \
    {                                                                                                                         \
        __asm__(".arch_extension crc\n\t" instruction " %w0, %w0, " operand : "+r"(state) : "r"(value));                      \
        return state;                                                                                                         \
    }

STEP(crc32_8_bytes, "crc32x", "%x1", uint64_t)
STEP(crc32_byte, "crc32b", "%w1", uint32_t)
STEP(crc32c_8_bytes, "crc32cx", "%x1", uint64_t)
STEP(crc32c_byte, "crc32cb", "%w1", uint32_t)

INLINE uint64_t multiply(uint32_t a, uint32_t b)
{
    const uint64x1_t x = vcreate_u64(a), y = vcreate_u64(b);
    uint64x2_t product;
    __asm__(".arch_extension aes\n\tpmull %0.1q, %1.1d, %2.1d" : "=w"(product) : "w"(x), "w"(y));
    return vgetq_lane_u64(product, 0);
}

INLINE uint64_t load_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

INLINE uint32_t crc(const struct shifts *shifts, step_8_bytes step, step_byte step_1, const uint8_t *data, size_t size)
{
    uint32_t state = UINT32_MAX;
    for (; size >= 3 * STRAND; data += 3 * STRAND, size -= 3 * STRAND) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < STRAND; i += 8) {
            state = step(state, load_u64(data + i));
            second = step(second, load_u64(data + STRAND + i));
            third = step(third, load_u64(data + 2 * STRAND + i));
        }
        state = third ^ step(0, multiply(state, shifts->by_two_strands) ^ multiply(second, shifts->by_one_strand));
    }
    for (; size >= 8; data += 8, size -= 8) state = step(state, load_u64(data));
    for (; size > 0; data++, size--) state = step_1(state, *data);
    return ~state;
}

static uint32_t crc32(const uint8_t *data, size_t size)
{
    return crc(&CRC32_SHIFTS, crc32_8_bytes, crc32_byte, data, size);
}

static uint32_t crc32c(const uint8_t *data, size_t size)
{
    return crc(&CRC32C_SHIFTS, crc32c_8_bytes, crc32c_byte, data, size);
}

static void crc32_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    for (size_t i = 0; i < count; i++) crcs[i] = crc32(data[i], sizes[i]);
}

static void crc32c_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    for (size_t i = 0; i < count; i++) crcs[i] = crc32c(data[i], sizes[i]);
}

static int available(void)
{
#if defined(__APPLE__)
    return 1; /* every arm64 Mac has them */
#else
    const unsigned long HAS_PMULL = 1UL << 4, HAS_CRC32 = 1UL << 7; /* HWCAP_* of <asm/hwcap.h> */
    const unsigned long has = getauxval(AT_HWCAP);
    return (has & HAS_PMULL) != 0 && (has & HAS_CRC32) != 0;
#endif
}

const struct kf_crc_kernel *kf_crc_armv8(void)
{
    static const struct kf_crc_kernel KERNEL = {"armv8", "armv8 crc+pmull", crc32, crc32c, crc32_many, crc32c_many};
    return available() ? &KERNEL : NULL;
}

#else

const struct kf_crc_kernel *kf_crc_armv8(void)
{
    return NULL;
}

#endif
