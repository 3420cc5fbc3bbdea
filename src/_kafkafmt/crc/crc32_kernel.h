/* The interface of a CRC kernel, for crc32.c, which chooses one, and for the files that implement kernels. Other files
 * include crc32.h. */
#ifndef KF_CRC32_KERNEL_H
#define KF_CRC32_KERNEL_H

#include <stddef.h>
#include <stdint.h>

struct kf_crc_kernel {
    const char *name;        /* the argument of kf_crc_select() */
    const char *description; /* the result of kf_crc_kernel() */
    uint32_t (*crc32)(const uint8_t *data, size_t size);
    uint32_t (*crc32c)(const uint8_t *data, size_t size);
    void (*crc32_many)(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count);
    void (*crc32c_many)(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count);
};

/* Each returns NULL if the compiler's target or the processor lacks instructions of the kernel. The portable one never
 * returns NULL. */
const struct kf_crc_kernel *kf_crc_vpclmul(void);
const struct kf_crc_kernel *kf_crc_pclmul(void);
const struct kf_crc_kernel *kf_crc_armv8(void);
const struct kf_crc_kernel *kf_crc_portable(void);

#endif
