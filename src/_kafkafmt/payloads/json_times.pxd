# Dates and times of ISO 8601: 2020-02-03, and 2020-02-03T04:05:06.789Z. A time may end after the hours or the minutes,
# have a space for the T, and an offset such as +01:00, +0100 or +01 for the Z. A time without an offset is one of UTC.

from libc.stdint cimport INT64_MAX, int64_t, uint8_t

from ..wire.bytes cimport unlikely

cdef enum:
    DATE_SIZE = 10
    DAY_SECONDS = 86400
    ERA_DAYS = 146097          # of 400 years
    EPOCH_DAYS = 719468        # from 0000-03-01 to 1970-01-01


cdef inline int two_digits(const uint8_t* at) noexcept nogil:
    """Return the number of two digits, or -1."""
    cdef uint8_t tens = at[0] - c"0", ones = at[1] - c"0"
    return tens * 10 + ones if tens <= 9 and ones <= 9 else -1


cdef inline int days_of_month(int year, int month) noexcept nogil:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


cdef inline bint days_of(const uint8_t* text, int64_t size, int64_t* days) noexcept nogil:
    """Read a date as days since 1970. Returns False if the text is no date."""
    cdef int century, years, month, day, year
    if size != DATE_SIZE or text[4] != c"-" or text[7] != c"-":
        return False
    century, years = two_digits(text), two_digits(text + 2)
    month, day = two_digits(text + 5), two_digits(text + 8)
    if century < 0 or years < 0 or not 1 <= month <= 12:
        return False
    year = century * 100 + years
    if not 1 <= day <= days_of_month(year, month):
        return False
    # Years that begin in March end with the day that may be missing. 400 more years keep the number positive.
    year += 400 - (month <= 2)
    days[0] = year * 365 + year // 4 - year // 100 + year // 400
    days[0] += (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days[0] -= EPOCH_DAYS + ERA_DAYS
    return True


cdef inline bint read_offset(const uint8_t** pos, const uint8_t* end, int64_t* seconds) noexcept nogil:
    """Read an offset from UTC, if there is one."""
    cdef const uint8_t* at = pos[0]
    cdef int hours, minutes = 0
    seconds[0] = 0
    if at == end:
        return True
    if at[0] == c"Z":
        pos[0] = at + 1
        return True
    if end - at < 3 or (at[0] != c"+" and at[0] != c"-"):
        return False
    hours = two_digits(at + 1)
    pos[0] = at + 3
    if end - pos[0] >= 2:
        pos[0] += pos[0][0] == c":"
        if end - pos[0] < 2:
            return False
        minutes = two_digits(pos[0])
        pos[0] += 2
    if not 0 <= hours <= 23 or not 0 <= minutes <= 59:
        return False
    seconds[0] = (hours * 60 + minutes) * (-60 if at[0] == c"-" else 60)
    return True


cdef inline bint read_clock(
    const uint8_t** pos, const uint8_t* end, int64_t units, int64_t* seconds, int64_t* fraction
) noexcept nogil:
    """Read the time of a day. fraction: in units of which a second has `units`, a power of ten."""
    cdef int part, number
    seconds[0] = fraction[0] = 0
    for part in range(3):
        if part and (pos[0] == end or pos[0][0] != c":"):
            seconds[0] *= 60 if part == 2 else 3600
            return True
        pos[0] += part > 0
        if end - pos[0] < 2:
            return False
        number = two_digits(pos[0])
        if not 0 <= number <= (59 if part else 23):
            return False
        seconds[0] = seconds[0] * 60 + number
        pos[0] += 2
    if pos[0] < end and pos[0][0] == c".":
        pos[0] += 1
        if pos[0] == end or not c"0" <= pos[0][0] <= c"9":
            return False
        while pos[0] < end and c"0" <= pos[0][0] <= c"9":
            if units > 1:
                units //= 10
                fraction[0] += (pos[0][0] - c"0") * units
            elif pos[0][0] != c"0":  # a digit that the unit does not have
                return False
            pos[0] += 1
    return True


cdef inline bint time_of(const uint8_t* text, int64_t size, int64_t units, int64_t* time) noexcept nogil:
    """Read a time in units since 1970. Returns False if the text is none, or if it needs more digits or bits."""
    cdef const uint8_t* pos = text + DATE_SIZE
    cdef const uint8_t* end = text + size
    cdef int64_t days = 0, seconds = 0, fraction = 0, offset = 0
    if size < DATE_SIZE or not days_of(text, DATE_SIZE, &days):
        return False
    if pos < end:
        if pos[0] != c"T" and pos[0] != c" ":
            return False
        pos += 1
        if not read_clock(&pos, end, units, &seconds, &fraction) or not read_offset(&pos, end, &offset) or pos < end:
            return False
    seconds += days * DAY_SECONDS - offset
    if unlikely(not -(INT64_MAX // units) <= seconds < INT64_MAX // units):
        return False
    time[0] = seconds * units + fraction
    return True
