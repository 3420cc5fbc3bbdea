/* Chooses the CRC kernel, calls it, and iterates over messages.
 *
 * The kernel in use is one atomic pointer to constant data. Choosing is idempotent, so threads that race for the first call
 * need no lock. Messages are passed to the kernel in groups: finding a message depends on the size field before it, but
 * checksums do not depend on each other. */
#include "crc32.h"

#include <string.h>

#include "crc32_kernel.h"

/* A message of magic 0 or 1, integers big endian:
 *   int64 offset | int32 size | uint32 crc | size - 4 bytes that the crc covers */
enum {
    SIZE_OFFSET = 8,
    CRC_OFFSET = SIZE_OFFSET + 4,
    CRC_LENGTH = 4,
    BODY_OFFSET = CRC_OFFSET + CRC_LENGTH,
    MESSAGES_PER_GROUP = 4,
};

typedef const struct kf_crc_kernel *(*kernel_getter)(void);

/* Best first. */
static const kernel_getter KERNELS[] = {kf_crc_vpclmul, kf_crc_pclmul, kf_crc_armv8, kf_crc_portable};

static const struct kf_crc_kernel *kernel_in_use;

int kf_crc_select(const char *name)
{
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++) {
        const struct kf_crc_kernel *kernel = KERNELS[i]();
        if (kernel != NULL && (name == NULL || strcmp(name, kernel->name) == 0)) {
            __atomic_store_n(&kernel_in_use, kernel, __ATOMIC_RELEASE);
            return 0;
        }
    }
    return -1;
}

void kf_crc_init(void)
{
    kf_crc_select(NULL);
}

static inline const struct kf_crc_kernel *in_use(void)
{
    const struct kf_crc_kernel *kernel = __atomic_load_n(&kernel_in_use, __ATOMIC_ACQUIRE);
    if (__builtin_expect(kernel == NULL, 0)) {
        kf_crc_init();
        kernel = __atomic_load_n(&kernel_in_use, __ATOMIC_ACQUIRE);
    }
    return kernel;
}

const char *kf_crc_kernel(void)
{
    return in_use()->description;
}

uint32_t kf_crc32(const uint8_t *data, size_t size)
{
    return in_use()->crc32(data, size);
}

uint32_t kf_crc32c(const uint8_t *data, size_t size)
{
    return in_use()->crc32c(data, size);
}

void kf_crc32_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    in_use()->crc32_many(data, sizes, crcs, count);
}

void kf_crc32c_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count)
{
    in_use()->crc32c_many(data, sizes, crcs, count);
}

static inline uint32_t big_endian(uint32_t value)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return value;
#else
    return __builtin_bswap32(value);
#endif
}

static inline uint32_t load_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return big_endian(value);
}

static inline void store_u32(uint8_t *at, uint32_t value)
{
    value = big_endian(value);
    memcpy(at, &value, sizeof value);
}

void kf_crc32_seal_messages(uint8_t *messages, size_t size)
{
    const struct kf_crc_kernel *kernel = in_use();
    uint8_t *const end = messages + size;
    size_t count;
    do {
        const uint8_t *bodies[MESSAGES_PER_GROUP];
        size_t sizes[MESSAGES_PER_GROUP];
        uint32_t crcs[MESSAGES_PER_GROUP];
        for (count = 0; count < MESSAGES_PER_GROUP && end - messages >= BODY_OFFSET; count++) {
            const int32_t length = (int32_t)load_u32(messages + SIZE_OFFSET);
            if (length < CRC_LENGTH || length > end - messages - CRC_OFFSET) break;
            bodies[count] = messages + BODY_OFFSET;
            sizes[count] = (size_t)(length - CRC_LENGTH);
            messages += CRC_OFFSET + length;
        }
        kernel->crc32_many(bodies, sizes, crcs, count);
        for (size_t i = 0; i < count; i++) store_u32((uint8_t *)bodies[i] - CRC_LENGTH, crcs[i]);
    } while (count == MESSAGES_PER_GROUP);
}
