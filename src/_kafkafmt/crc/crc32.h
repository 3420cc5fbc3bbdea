/* The two checksums of Kafka's record formats: CRC-32 (IEEE, as zlib) guards messages of magic 0 and 1, CRC-32C (Castagnoli)
 * guards record batches of magic 2.
 *
 * One kernel serves all functions of this file. The best one that the processor supports is chosen at run time, by
 * kf_crc_init() or by the first call. Every function is safe to call from several threads, reads no byte outside the given
 * ranges, and accepts any alignment. */
#ifndef KF_CRC32_H
#define KF_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Chooses the kernel, so that the first call need not. */
void kf_crc_init(void);

/* Returns a description of the kernel in use: the instructions that it uses. */
const char *kf_crc_kernel(void);

/* Uses the kernel of this name: "vpclmul", "pclmul", "armv8" or "portable"; NULL for the best. Returns 0, or -1 if this
 * processor does not support it. */
int kf_crc_select(const char *name);

uint32_t kf_crc32(const uint8_t *data, size_t size);
uint32_t kf_crc32c(const uint8_t *data, size_t size);

/* crcs[i] = checksum of the sizes[i] bytes at data[i]. This is faster than a call for each if the ranges are small. */
void kf_crc32_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count);
void kf_crc32c_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count);

/* Writes the CRC field of each message of magic 0 or 1. Stops at the first message whose size field exceeds the bytes that
 * are left. */
void kf_crc32_seal_messages(uint8_t *messages, size_t size);

#endif
