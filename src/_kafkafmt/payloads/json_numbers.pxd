# Numbers of JSON. Floating numbers are the nearest ones to the digits that are written, as strtod has them: by one
# multiplication where that is exact, by the algorithm of Eisel and Lemire ("Number Parsing at a Gigabyte per Second",
# 2021), and by strtod for the few that it leaves open.

from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from ..wire.bytes cimport likely, unlikely
from .json cimport ReadStatus, Run, refuse

cdef extern from *:
    """
    #include <locale.h>
    #include <stdlib.h>
    #if defined(__APPLE__)
    #include <xlocale.h>
    #endif
    #define KF_LEAST_POWER (-348)
    #define KF_LAST_POWER 347
    /* The upper 128 bits of each power of ten, the lower 64 of them first. The module fills it. */
    static uint64_t KF_POWERS[2 * (KF_LAST_POWER - KF_LEAST_POWER + 1)];
    static const double KF_EXACT_POWERS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13,
        1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    static locale_t KF_C_LOCALE;
    static inline int kf_open_c_locale(void) {
        KF_C_LOCALE = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        return KF_C_LOCALE != (locale_t)0;
    }
    static inline double kf_strtod(const char *text) { return strtod_l(text, NULL, KF_C_LOCALE); }
    static inline float kf_strtof(const char *text) { return strtof_l(text, NULL, KF_C_LOCALE); }
    static inline uint64_t kf_multiply(uint64_t a, uint64_t b, uint64_t *high) {
        const unsigned __int128 product = (unsigned __int128)a * b;
        *high = (uint64_t)(product >> 64);
        return (uint64_t)product;
    }
    """
    enum:
        LEAST_POWER "KF_LEAST_POWER"
        LAST_POWER "KF_LAST_POWER"
    uint64_t* POWERS "KF_POWERS"
    const double* EXACT_POWERS "KF_EXACT_POWERS"
    bint open_c_locale "kf_open_c_locale"()
    double strtod "kf_strtod"(const char*) noexcept nogil
    float strtof "kf_strtof"(const char*) noexcept nogil
    uint64_t multiply "kf_multiply"(uint64_t, uint64_t, uint64_t*) noexcept nogil
    int __builtin_clzll(unsigned long long) noexcept nogil

cdef enum:
    MAX_DIGITS = 19            # that fit into 64 bits, whatever they are
    MAX_EXACT_POWER = 22       # of ten as a double
    SHORT_NUMBER = 64          # bytes of text
    LIMBS = 4                  # of 64 bits: a decimal of 256
    MAX_EXPONENT = 1000000000  # larger ones have the same result

cdef struct Number:
    const uint8_t* start
    int64_t size
    uint64_t digits            # the first MAX_DIGITS digits from the first that is not 0 on
    int64_t exponent           # of ten, by which the digits are multiplied
    int64_t count              # of all digits
    bint is_negative
    bint is_integer            # no point and no exponent
    bint is_cut                # digits that are not 0 are left out


cdef inline const uint8_t* digits_end(const uint8_t* pos, const uint8_t* end, uint64_t* number) noexcept nogil:
    """Read digits. number: wraps if there are too many."""
    while pos < end and <uint8_t>(pos[0] - c"0") <= 9:
        number[0] = number[0] * 10 + <uint8_t>(pos[0] - c"0")
        pos += 1
    return pos


cdef inline int read_exponent(Run* run, int64_t* exponent) noexcept nogil:
    """Read an exponent whose E is next."""
    cdef bint is_negative
    cdef const uint8_t* start
    run.pos += 1
    is_negative = run.pos < run.end and run.pos[0] == c"-"
    if run.pos < run.end and (is_negative or run.pos[0] == c"+"):
        run.pos += 1
    start = run.pos
    while run.pos < run.end and c"0" <= run.pos[0] <= c"9":
        if exponent[0] < MAX_EXPONENT:
            exponent[0] = exponent[0] * 10 + (run.pos[0] - c"0")
        run.pos += 1
    if unlikely(run.pos == start):
        return refuse(run, ReadStatus.NO_DIGIT)
    if is_negative:
        exponent[0] = -exponent[0]
    return ReadStatus.READ


cdef inline void cut_digits(Number* number, const uint8_t* pos, int64_t exponent) noexcept nogil:
    """Keep the first digits of a number that has many. pos: of its first digit."""
    cdef bint is_fraction = False
    cdef int kept = 0
    cdef uint8_t digit
    number.digits = 0
    number.exponent = exponent
    while pos[0] == c"." or c"0" <= pos[0] <= c"9":
        digit = pos[0] - c"0"
        if pos[0] == c".":
            is_fraction = True
        elif kept < MAX_DIGITS:
            number.digits = number.digits * 10 + digit
            number.exponent -= is_fraction
            kept += kept > 0 or digit > 0
        else:
            number.is_cut = number.is_cut or digit > 0
            number.exponent += not is_fraction
        pos += 1
        if pos == number.start + number.size:
            return


cdef inline int read_number(Run* run, Number* number) noexcept nogil:
    """Move past a number."""
    cdef const uint8_t* first
    cdef const uint8_t* fraction
    cdef int64_t exponent = 0
    cdef int status
    number.start = run.pos
    number.is_negative = run.pos < run.end and run.pos[0] == c"-"
    run.pos += number.is_negative
    first = run.pos
    number.digits = 0
    number.exponent = 0
    number.is_integer = True
    number.is_cut = False
    if run.pos < run.end and run.pos[0] == c"0":
        run.pos += 1
    else:
        run.pos = digits_end(run.pos, run.end, &number.digits)
        if unlikely(run.pos == first):
            return refuse(run, ReadStatus.NO_DIGIT)
    number.count = run.pos - first
    if run.pos < run.end and run.pos[0] == c".":
        fraction = run.pos + 1
        run.pos = digits_end(fraction, run.end, &number.digits)
        if unlikely(run.pos == fraction):
            return refuse(run, ReadStatus.NO_DIGIT)
        number.is_integer = False
        number.count += run.pos - fraction
        number.exponent = fraction - run.pos
    if run.pos < run.end and unlikely((run.pos[0] | 0x20) == c"e"):
        status = read_exponent(run, &exponent)
        if unlikely(status != ReadStatus.READ):
            return status
        number.is_integer = False
        number.exponent += exponent
    number.size = run.pos - number.start
    if unlikely(number.count > MAX_DIGITS):
        cut_digits(number, first, exponent)
    return ReadStatus.READ


cdef inline bint magnitude_of(const Number* number, uint64_t* magnitude) noexcept nogil:
    """Return whether a number is an integer of 64 bits and a sign."""
    cdef uint64_t last
    magnitude[0] = number.digits
    if not number.is_integer or number.count > MAX_DIGITS + 1:
        return False
    if number.count <= MAX_DIGITS:
        return True
    last = number.start[number.size - 1] - c"0"
    magnitude[0] = number.digits * 10 + last
    return number.digits <= (UINT64_MAX - last) / 10


cdef inline bint nearest(uint64_t digits, int64_t exponent, uint64_t* bits) noexcept nogil:
    """Find the double that is nearest to digits times a power of ten. Returns False if it takes more to know it."""
    cdef uint64_t high = 0, low, wide_high = 0, wide_low, power, mantissa, upper
    cdef int64_t binary
    cdef int zeros
    if digits == 0:
        bits[0] = 0
        return True
    if not LEAST_POWER <= exponent <= LAST_POWER:
        return False
    zeros = __builtin_clzll(digits)
    digits <<= zeros
    binary = ((217706 * exponent) >> 16) + 64 + 1023 - zeros
    power = POWERS[2 * (exponent - LEAST_POWER) + 1]
    low = multiply(digits, power, &high)
    if unlikely(high & 0x1FF == 0x1FF and low + digits < digits):
        wide_low = multiply(digits, POWERS[2 * (exponent - LEAST_POWER)], &wide_high)
        low += wide_high
        high += low < wide_high
        if high & 0x1FF == 0x1FF and low == UINT64_MAX and wide_low + digits < digits:
            return False
    upper = high >> 63
    mantissa = high >> (upper + 9)
    binary -= 1 ^ upper
    if unlikely(low == 0 and high & 0x1FF == 0 and mantissa & 3 == 1):
        return False
    mantissa = (mantissa + (mantissa & 1)) >> 1
    if mantissa >> 53:
        mantissa >>= 1
        binary += 1
    if unlikely(not 0 < binary < 0x7FF):
        return False
    bits[0] = <uint64_t>binary << 52 | mantissa & 0xFFFFFFFFFFFFFULL
    return True


cdef inline int by_text(const Number* number, double* value, float* single) noexcept nogil:
    """Read a number by strtod, and by strtof. They need a zero at the end of the text."""
    cdef char[SHORT_NUMBER] short_text
    cdef char* text = short_text
    if number.size >= SHORT_NUMBER:
        text = <char*>malloc(number.size + 1)
        if text == NULL:
            return ReadStatus.NO_MEMORY
    memcpy(text, number.start, number.size)
    text[number.size] = 0
    value[0] = strtod(text)
    single[0] = strtof(text)
    if text != short_text:
        free(text)
    return ReadStatus.READ


cdef inline int double_of(const Number* number, double* value) noexcept nogil:
    """Find the double that is nearest to a number."""
    cdef uint64_t bits = 0, other = 0
    cdef float single
    if number.digits >> 53 == 0 and not number.is_cut and -MAX_EXACT_POWER <= number.exponent <= MAX_EXACT_POWER:
        value[0] = <double>number.digits
        if number.exponent < 0:
            value[0] /= EXACT_POWERS[-number.exponent]
        else:
            value[0] *= EXACT_POWERS[number.exponent]
    elif likely(nearest(number.digits, number.exponent, &bits)) and (
        not number.is_cut or (nearest(number.digits + 1, number.exponent, &other) and bits == other)
    ):
        memcpy(value, &bits, sizeof(bits))
    else:
        return by_text(number, value, &single)
    if number.is_negative:
        value[0] = -value[0]
    return ReadStatus.READ


cdef inline int float_of(const Number* number, float* value) noexcept nogil:
    """Find the float that is nearest to a number."""
    cdef double wide = 0
    cdef uint64_t bits
    cdef int status = double_of(number, &wide)
    if unlikely(status != ReadStatus.READ):
        return status
    value[0] = <float>wide
    memcpy(&bits, &wide, sizeof(bits))
    # A double that is halfway between two floats may have been rounded before. Small floats have fewer digits.
    if bits & 0x1FFFFFFF == 0x10000000 or (-1.2e-38 < wide < 1.2e-38 and number.digits):
        return by_text(number, &wide, value)
    return ReadStatus.READ


cdef inline void shift_limbs(uint64_t* limbs, int count, uint8_t digit) noexcept nogil:
    """Multiply by ten, and add a digit. There is room."""
    cdef uint64_t carry = digit, high = 0, low
    cdef int i
    for i in range(count):
        low = multiply(limbs[i], 10, &high)
        limbs[i] = low + carry
        carry = high + (limbs[i] < low)


cdef inline bint decimal_of(
    const uint8_t* text, int64_t size, int64_t precision, int64_t scale, int count, uint64_t* limbs
) noexcept nogil:
    """Read a decimal into `count` limbs. Returns False if the text is none, or has digits that do not fit.

    A sign, digits with a point, and an exponent are expected. There must be a digit.
    """
    cdef const uint8_t* pos = text
    cdef const uint8_t* end = text + size
    cdef const uint8_t* first
    cdef const uint8_t* last
    cdef int64_t exponent = 0, power = 0, kept = 0
    cdef bint is_negative, is_fraction = False, is_small
    cdef uint64_t carry = 1
    cdef int i
    memset(limbs, 0, LIMBS * sizeof(uint64_t))
    is_negative = pos < end and pos[0] == c"-"
    pos += pos < end and (is_negative or pos[0] == c"+")
    first = pos
    while pos < end and (c"0" <= pos[0] <= c"9" or (pos[0] == c"." and not is_fraction)):
        is_fraction = is_fraction or pos[0] == c"."
        power += is_fraction
        pos += 1
    last = pos
    if last - first == is_fraction:
        return False
    if pos < end:
        if (pos[0] | 0x20) != c"e":
            return False
        pos += 1
        is_small = pos < end and pos[0] == c"-"
        pos += pos < end and (is_small or pos[0] == c"+")
        if pos == end:
            return False
        while pos < end:
            if not c"0" <= pos[0] <= c"9":
                return False
            if exponent < MAX_EXPONENT:
                exponent = exponent * 10 + (pos[0] - c"0")
            pos += 1
        if is_small:
            exponent = -exponent
    # The power of ten of the first digit, in units of the scale.
    power = (last - first) - power - 1 + exponent + scale
    pos = first
    while pos < last:
        if pos[0] != c".":
            if power >= 0 or pos[0] != c"0":
                kept += kept > 0 or pos[0] != c"0"
                if power < 0 or kept > precision:
                    return False
                shift_limbs(limbs, count, pos[0] - c"0")
            power -= 1
        pos += 1
    while kept and power >= 0:
        kept += 1
        if kept > precision:
            return False
        shift_limbs(limbs, count, 0)
        power -= 1
    if is_negative:
        for i in range(count):
            limbs[i] = ~limbs[i] + carry
            carry = carry and limbs[i] == 0
    return True
