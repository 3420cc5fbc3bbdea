"""The checks of `fuzz.kernel_text`, whose module documents them."""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport UINT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from checks cimport Broken, expect

from _kafkafmt.json.text cimport (
    MAX_ESCAPED_SIZE, MAX_INTEGER_SIZE, TEXT_SLACK, JsonText, put_integer, put_string,
)
from _kafkafmt.payloads.json cimport ReadStatus, Run
from _kafkafmt.payloads.json_numbers cimport (
    LAST_POWER, LEAST_POWER, LIMBS, POWERS, Number, decimal_of, double_of, float_of, magnitude_of, open_c_locale,
    read_number, strtod, strtof,
)
from _kafkafmt.payloads.json_strings cimport Text, read_string, unescape
from _kafkafmt.payloads.json_times cimport DATE_SIZE, DAY_SECONDS, days_of, time_of
from _kafkafmt.payloads.utf8 cimport is_utf8
from _kafkafmt.records.read cimport PLAIN_VARINT_SIZE
from _kafkafmt.wire.bytes cimport Cursor
from _kafkafmt.wire.status cimport Status
from _kafkafmt.wire.varint cimport (
    read_plain_varint, read_unsigned, read_varint, read_varlong, size_of_unsigned, size_of_varlong, write_unsigned,
    write_varlong,
)

cdef extern from *:
    """
    #include <errno.h>
    #include <stdlib.h>
    #include <time.h>
    /* Sets the seconds from 1970 to a date. Returns 0 if there is no such day. */
    static int kf_seconds(int year, int month, int day, int64_t *seconds) {
        struct tm date = {.tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day};
        const struct tm given = date;
        const time_t found = timegm(&date);  /* which sets the date to the day that it takes it for */
        if (date.tm_year != given.tm_year || date.tm_mon != given.tm_mon || date.tm_mday != given.tm_mday) {
            return 0;
        }
        *seconds = found;
        return 1;
    }
    static void kf_set_errno(int value) { errno = value; }
    static int kf_errno(void) { return errno; }
    """
    bint seconds_of_date "kf_seconds"(int, int, int, int64_t*) noexcept nogil
    void set_errno "kf_set_errno"(int) noexcept nogil
    int get_errno "kf_errno"() noexcept nogil
    int ERANGE
    uint64_t strtoull(const char*, char**, int) noexcept nogil

cdef enum:
    OPTIONS = 1
    LONG_NUMBER = 40          # characters of an integer of 64 bits, and more
    MAX_VARINT_SIZE = 10
    MICROS = 1000000          # of a second
    MILLIS = 1000
    SCALED_DIGITS = 18        # that fit into a limb
    MORE_THAN_SCALED = 1000000000000000000

ctypedef Broken (*Check)(const uint8_t*, Py_ssize_t) noexcept nogil

cdef Check[6] CHECKS = [check_string, check_number, check_integer, check_text, check_time, check_varints]


def check(bytes given not None):
    cdef const uint8_t* data = given
    cdef Py_ssize_t size = len(given) - OPTIONS
    cdef uint8_t* text
    cdef int chosen
    cdef Broken broken
    if size <= 0:
        return
    chosen = data[0] % 7
    if chosen == 6:
        check_utf8(data + OPTIONS, size)
        return
    with nogil:
        text = <uint8_t*>malloc(size)  # so that ASan knows its end
        memcpy(text, &data[OPTIONS], size)
        broken = CHECKS[chosen](text, size)
        free(text)
    assert broken == NULL, broken.decode()


cdef int check_utf8(const uint8_t* data, Py_ssize_t size) except -1:
    """Compare with CPython's decoder."""
    cdef bint expected = True
    try:
        PyUnicode_DecodeUTF8(<const char*>data, size, NULL)
    except UnicodeDecodeError:
        expected = False
    assert is_utf8(data, size) == expected, "UTF-8"
    return 0


cdef Run run_of(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef Run run
    memset(&run, 0, sizeof(run))
    run.pos = data
    run.end = run.readable_end = data + size
    return run


cdef JsonText text_of(uint8_t* start, Py_ssize_t room) noexcept nogil:
    cdef JsonText out
    memset(&out, 0, sizeof(out))
    out.start = out.pos = start
    out.end = start + room
    return out


cdef Broken check_string(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Write UTF-8 as a string of JSON, and read it."""
    cdef Py_ssize_t room = MAX_ESCAPED_SIZE * size + 2
    cdef uint8_t* written = <uint8_t*>malloc(room + TEXT_SLACK)
    cdef JsonText out = text_of(written, room)
    cdef Broken broken = NULL
    if put_string(&out, data, size) != is_utf8(data, size):
        broken = b"a string that is no UTF-8"
    elif is_utf8(data, size):
        broken = expect(not out.is_full, b"the room of a string")
        if broken == NULL:
            broken = check_written(written, out.pos - written, data, size)
    if broken == NULL:  # with less room, of which the first byte decides how much
        out = text_of(written, size + 2 + data[0] % (5 * size))
        put_string(&out, data, size)
        broken = expect(out.pos <= out.end, b"the end of a string")
    free(written)
    return broken


cdef Broken check_written(
    const uint8_t* written, Py_ssize_t written_size, const uint8_t* data, Py_ssize_t size
) noexcept nogil:
    cdef uint8_t* exact = <uint8_t*>malloc(written_size)
    cdef uint8_t* read = <uint8_t*>malloc(written_size)
    cdef Run run = run_of(exact, written_size)
    cdef Text text
    cdef Broken broken = NULL
    memcpy(exact, written, written_size)
    if read_string(&run, &text) != ReadStatus.READ or run.pos != run.end:
        broken = b"a written string"
    elif unescape(&text, read) != size or memcmp(read, data, size) != 0:
        broken = b"the text of a written string"
    free(read)
    free(exact)
    return broken


cdef Broken check_text(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Read a string of JSON, after the first byte in place of a quote; and write what it is."""
    cdef Run run = run_of(data, size)
    cdef Text text
    cdef uint8_t* read
    cdef int64_t read_size
    cdef Broken broken = NULL
    if read_string(&run, &text) != ReadStatus.READ:
        return expect(data <= run.pos <= run.end, b"the position of a failure")
    read = <uint8_t*>malloc(text.size + 1)
    read_size = unescape(&text, read)
    if read_size > text.size or not is_utf8(read, read_size):
        broken = b"the text of a string"
    elif not text.is_escaped and (read_size != text.size or memcmp(read, text.start, read_size) != 0):
        broken = b"the text of a string without escapes"
    elif read_size:
        broken = check_string(read, read_size)
    free(read)
    return broken


cdef Broken check_number(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Compare with the C library."""
    cdef Run run = run_of(data, size)
    cdef Number number
    cdef double value = 0, other
    cdef float single = 0, other_single
    cdef uint64_t magnitude = 0, expected, upper
    cdef uint64_t[LIMBS] limbs
    cdef bint is_unsigned, has_decimal
    cdef char* text
    cdef Broken broken = NULL
    if read_number(&run, &number) != ReadStatus.READ:
        return expect(data <= run.pos <= run.end, b"the position of a failure")
    text = <char*>malloc(number.size + 1)
    memcpy(text, number.start, number.size)
    text[number.size] = 0
    other, other_single = strtod(text), strtof(text)
    set_errno(0)
    expected = strtoull(text + number.is_negative, NULL, 10)
    is_unsigned = magnitude_of(&number, &magnitude)
    has_decimal = decimal_of(number.start, number.size, SCALED_DIGITS, 0, LIMBS, limbs)
    if double_of(&number, &value) != ReadStatus.READ or memcmp(&value, &other, sizeof(value)) != 0:
        broken = b"a double"
    elif float_of(&number, &single) != ReadStatus.READ or memcmp(&single, &other_single, sizeof(single)) != 0:
        broken = b"a float"
    elif is_unsigned != (number.is_integer and get_errno() != ERANGE) or (is_unsigned and magnitude != expected):
        broken = b"an integer"
    elif number.is_integer and has_decimal != (is_unsigned and magnitude < MORE_THAN_SCALED):
        broken = b"whether a decimal has room"
    elif has_decimal:
        upper = UINT64_MAX if number.is_negative and limbs[0] else 0
        if number.is_integer and limbs[0] != (0 - magnitude if number.is_negative else magnitude):
            broken = b"a decimal"
        elif limbs[1] != upper or limbs[2] != upper or limbs[3] != upper:
            broken = b"the sign of a decimal"
    free(text)
    return broken


cdef Broken check_integer(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Write an integer, and compare with the C library."""
    cdef int64_t value = 0
    cdef char[LONG_NUMBER] expected
    cdef uint8_t[LONG_NUMBER] found
    cdef JsonText out = text_of(found, MAX_INTEGER_SIZE + 1)
    cdef int length
    memcpy(&value, data, min(size, <Py_ssize_t>sizeof(value)))
    length = snprintf(expected, sizeof(expected), b"%lld", <long long>value)
    put_integer(&out, value)
    return expect(out.pos - found == length and memcmp(found, expected, length) == 0, b"a written integer")


cdef Broken check_time(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Compare a date with that of the C library; a time is within a day, and an offset, of its date."""
    cdef int64_t days = 0, seconds = 0, micros = 0, millis = 0
    cdef int64_t day = <int64_t>DAY_SECONDS * MICROS, least = 0, most = day - 1
    cdef bint has_millis
    if size < DATE_SIZE:
        return expect(not time_of(data, size, MICROS, &micros), b"a time without a date")
    if days_of(data, DATE_SIZE, &days) != date_of(data, &seconds):
        return b"whether there is a date"
    if days * DAY_SECONDS != seconds:
        return b"a date"
    if not time_of(data, size, MICROS, &micros):
        return NULL
    if memchr(data + DATE_SIZE, c"+", size - DATE_SIZE) != NULL:
        least -= day
    if memchr(data + DATE_SIZE, c"-", size - DATE_SIZE) != NULL:
        most += day
    if not least <= micros - seconds * MICROS <= most:
        return b"a time of a day"
    has_millis = time_of(data, size, MILLIS, &millis)
    if has_millis != (micros % (MICROS // MILLIS) == 0):
        return b"whether there is a time in milliseconds"
    return expect(not has_millis or millis * (MICROS // MILLIS) == micros, b"a time in milliseconds")


cdef bint date_of(const uint8_t* at, int64_t* seconds) noexcept nogil:
    """Read digits with hyphens as a date, by the C library."""
    cdef int i
    for i in range(DATE_SIZE):
        if i == 4 or i == 7:
            if at[i] != c"-":
                return False
        elif not c"0" <= at[i] <= c"9":
            return False
    return seconds_of_date(
        two_digits(at) * 100 + two_digits(at + 2), two_digits(at + 5), two_digits(at + 8), seconds
    )


cdef int two_digits(const uint8_t* at) noexcept nogil:
    return (at[0] - c"0") * 10 + at[1] - c"0"


cdef Broken check_varints(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Read a varint as each kind; and write it."""
    cdef Cursor start = Cursor(data, data + size, Status.OK)
    cdef Cursor cursor = start
    cdef uint8_t[MAX_VARINT_SIZE] out
    cdef uint64_t short_one = 0, long_one = 0
    cdef int short_status = varint_of(data, size, 5, &short_one)
    cdef int long_status = varint_of(data, size, 10, &long_one)
    cdef uint32_t length = read_unsigned(&cursor)
    cdef int64_t number
    cdef int32_t plain = 0
    cdef const uint8_t* end
    if cursor.status != short_status or length != short_one:
        return b"an unsigned varint"
    if cursor.status == Status.OK and not is_shortest(
        write_unsigned(out, length) - out, size_of_unsigned(length), out, &cursor, data
    ):
        return b"a written unsigned varint"
    cursor = start
    number = read_varlong(&cursor)
    if cursor.status != long_status or number != unzigzag(long_one):
        return b"a varlong"
    if cursor.status == Status.OK and not is_shortest(
        write_varlong(out, number) - out, size_of_varlong(number), out, &cursor, data
    ):
        return b"a written varlong"
    cursor = start
    number = read_varint(&cursor)
    if cursor.status != short_status or number != unzigzag(short_one):
        return b"a varint"
    if size >= PLAIN_VARINT_SIZE:
        end = read_plain_varint(data, &plain)
        if end != NULL and (cursor.status != Status.OK or cursor.pos != end or plain != number):
            return b"a plain varint"
        if end == NULL and cursor.status == Status.OK and cursor.pos - data <= PLAIN_VARINT_SIZE:
            return b"a varint that is plain"
    return NULL


cdef int varint_of(const uint8_t* data, Py_ssize_t size, int max_bytes, uint64_t* value) noexcept nogil:
    """Read a varint of 32 bits in 5 bytes, or of 64 bits in 10. Returns the status. It sets the value if that is OK."""
    cdef uint64_t found = 0
    cdef int i, bits = 32 if max_bytes == 5 else 64
    for i in range(max_bytes):
        if i == size:
            return Status.ENDS_EARLY
        if 7 * i + 7 > bits and (data[i] & 0x7F) >> (bits - 7 * i):
            return Status.VARINT_TOO_LONG
        found |= <uint64_t>(data[i] & 0x7F) << 7 * i
        if data[i] < 0x80:
            value[0] = found
            return Status.OK
    return Status.VARINT_TOO_LONG


cdef int64_t unzigzag(uint64_t value) noexcept nogil:
    return -<int64_t>(value >> 1) - 1 if value & 1 else <int64_t>(value >> 1)


cdef bint is_shortest(
    Py_ssize_t written, int expected, const uint8_t* out, const Cursor* cursor, const uint8_t* data
) noexcept nogil:
    """Whether a number takes the bytes that were predicted, no more than were read, and these if they are as many."""
    cdef Py_ssize_t taken = cursor.pos - data
    return written == expected and written <= taken and (written < taken or memcmp(out, data, written) == 0)


def fill_powers():
    """Set the upper 128 bits of the powers of ten, as the module `_kafkafmt.payloads.json` does for its own copy."""
    for exponent in range(LEAST_POWER, LAST_POWER + 1):
        power = 10**exponent << 128 if exponent >= 0 else (1 << 2048) // 10**-exponent
        power >>= power.bit_length() - 128
        POWERS[2 * (exponent - LEAST_POWER)] = power & UINT64_MAX
        POWERS[2 * (exponent - LEAST_POWER) + 1] = power >> 64


fill_powers()
if not open_c_locale():
    raise MemoryError
