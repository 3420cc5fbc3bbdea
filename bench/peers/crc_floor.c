/* ISA-L's CRC-32C over many batches: a loop in C, since a call from Python for each would cost as much as the CRC. */
#include <stdint.h>

unsigned int crc32_iscsi(unsigned char *buffer, int length, unsigned int crc);  /* of libisal.so */

/* Returns how many of `count` batches have the CRC that is stored in their header. */
int64_t valid_batches(unsigned char *data, const int64_t *positions, const int32_t *sizes, int64_t count,
                      int crc_offset, int checked_offset)
{
    int64_t valid = 0;
    for (int64_t i = 0; i < count; i++) {
        unsigned char *batch = data + positions[i], *crc = batch + crc_offset;
        uint32_t stored = (uint32_t)crc[0] << 24 | crc[1] << 16 | crc[2] << 8 | crc[3];
        valid += stored == ~crc32_iscsi(batch + checked_offset, sizes[i] - checked_offset, ~0U);
    }
    return valid;
}
