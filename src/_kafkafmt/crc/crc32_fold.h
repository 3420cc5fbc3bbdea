/* The constants of the kernels that fold with carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ Instruction", 2009).
 *
 * Data is a polynomial over GF(2), its first bit the highest power, reflected: bit i of a 128-bit register is the coefficient
 * of x^(127-i). A register (low, high) moves forward by d bits of data as
 *     low * (x^(d+32) mod P) + high * (x^(d-32) mod P)
 * where the powers are 32 bits, reflected, and shifted left by one, because a reflected product lacks one bit.
 *
 * To finish, d = 64 leaves 96 bits congruent to data * x^32. Barrett reduction then takes two products: the quotient is the
 * low half of (low 64 bits * m), with m = floor(x^96 / P) reflected and without its lowest term; the remainder is dword 2 of
 * the 96 bits plus quotient * P. */
#ifndef KF_CRC32_FOLD_H
#define KF_CRC32_FOLD_H

#include <stdint.h>

struct kf_crc_fold {
    uint64_t lanes[4][2];     /* d = 64 seen from each of four adjacent registers: 448, 320, 192, 64 */
    uint64_t by_256_bytes[2]; /* d = 2048 */
    uint64_t by_64_bytes[2];  /* d = 512 */
    uint64_t by_16_bytes[2];  /* d = 128 */
    uint64_t reduction[2];    /* m, P */
};

/* P = x^32 + 0x04c11db7, in bits reflected 0xedb88320. */
static const struct kf_crc_fold KF_CRC32_FOLD = {
    .lanes = {{0x1c6e41596, 0x03db1ecdc}, {0x174359406, 0x0f1da05aa},
              {0x15a546366, 0x1751997d0}, {0x0ccaa009e, 0x1db710640}},
    .by_256_bytes = {0x11542778a, 0x1322d1430},
    .by_64_bytes = {0x154442bd4, 0x1c6e41596},
    .by_16_bytes = {0x1751997d0, 0x0ccaa009e},
    .reduction = {0xb4e5b025f7011641, 0x1db710641},
};

/* P = x^32 + 0x1edc6f41, in bits reflected 0x82f63b78. */
static const struct kf_crc_fold KF_CRC32C_FOLD = {
    .lanes = {{0x09e4addf8, 0x01c291d04}, {0x1d82c63da, 0x1384aa63a},
              {0x0ba4fc28e, 0x0f20c0dfe}, {0x14cd00bd6, 0x105ec76f0}},
    .by_256_bytes = {0x0dcb17aa4, 0x0b9e02b86},
    .by_64_bytes = {0x0740eef02, 0x09e4addf8},
    .by_16_bytes = {0x0f20c0dfe, 0x14cd00bd6},
    .reduction = {0x4869ec38dea713f1, 0x105ec76f1},
};

#endif
