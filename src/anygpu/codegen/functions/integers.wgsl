// Whole numbers. NumPy's meaning everywhere: results wrap, a divisor of zero gives 0, and nothing traps.

//: T=i32 U=u32 SIGN=0x80000000u WIDTH=32
//: T=i64 U=u64 SIGN=0x8000000000000000lu WIDTH=64

// The smallest number is its own negative, as in NumPy.
fn abs_T(x: T) -> T {
    return select(x, -x, x < 0);
}

fn sign_T(x: T) -> T {
    return select(select(T(0), T(1), x > 0), T(-1), x < 0);
}

// Beyond one there is nothing left of 1 / x; for 1 / 0 NumPy gives the smallest number.
fn reciprocal_T(x: T) -> T {
    return select(select(T(0), x, x == 1 || x == -1), bitcast<T>(SIGN), x == 0);
}

// Never 0 and never -1, by which the smallest number cannot be divided: callers deal with both apart.
fn safe_divisor_T(y: T) -> T {
    return select(y, T(1), y == 0 || y == -1);
}

fn floor_divide_T(x: T, y: T) -> T {
    let divisor = safe_divisor_T(y);
    let quotient = x / divisor;
    let rest = x - quotient * divisor;
    let floored = select(quotient, quotient - 1, rest != 0 && (rest < 0) != (divisor < 0));
    return select(select(floored, -x, y == -1), T(0), y == 0);
}

// The rest of a division by one is 0, which is also right for -1 and for 0.
fn fmod_T(x: T, y: T) -> T {
    let divisor = safe_divisor_T(y);
    return x - (x / divisor) * divisor;
}

fn remainder_T(x: T, y: T) -> T {
    let divisor = safe_divisor_T(y);
    let rest = x - (x / divisor) * divisor;
    return select(rest, rest + divisor, rest != 0 && (rest < 0) != (divisor < 0));
}

fn gcd_T(x: T, y: T) -> T {
    return bitcast<T>(gcd_U(bitcast<U>(abs_T(x)), bitcast<U>(abs_T(y))));
}

// NumPy counts the bits of the absolute value.
fn popcount_T(x: T) -> T {
    return bitcast<T>(popcount_U(bitcast<U>(abs_T(x))));
}

fn right_shift_T(x: T, count: T) -> T {
    let inside = count >= 0 && count < WIDTH;
    return x >> u32(select(WIDTH - 1, count, inside));
}

//: T=u32
//: T=u64

fn sign_T(x: T) -> T {
    return min(x, T(1));
}

fn reciprocal_T(x: T) -> T {
    return select(T(0), T(1), x == 1);
}

fn floor_divide_T(x: T, y: T) -> T {
    return select(x / max(y, T(1)), T(0), y == 0);
}

fn fmod_T(x: T, y: T) -> T {
    let divisor = max(y, T(1));
    return x - (x / divisor) * divisor;
}

fn remainder_T(x: T, y: T) -> T {
    return fmod_T(x, y);
}

// Euclid's; 47 rounds for 32 bits and 92 for 64 are the most.
fn gcd_T(x: T, y: T) -> T {
    var a = x;
    var b = y;
    while (b != 0) {
        let rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

//:

fn popcount_u32(x: u32) -> u32 {
    return countOneBits(x);
}

fn popcount_u64(x: u64) -> u64 {
    return u64(countOneBits(u32(x & 0xffffffff)) + countOneBits(u32(x >> 32u)));
}

fn leading_zeros_u32(x: u32) -> i32 {
    return i32(countLeadingZeros(x));
}

fn leading_zeros_u64(x: u64) -> i32 {
    let high = u32(x >> 32u);
    return i32(select(countLeadingZeros(high), 32u + countLeadingZeros(u32(x & 0xffffffff)), high == 0u));
}

//: T=u32 WIDTH=32
//: T=u64 WIDTH=64

fn right_shift_T(x: T, count: T) -> T {
    return select(T(0), x >> u32(count & (WIDTH - 1)), count < WIDTH);
}

//: T=i32 U=u32 WIDTH=32
//: T=u32 U=u32 WIDTH=32
//: T=i64 U=u64 WIDTH=64
//: T=u64 U=u64 WIDTH=64

fn left_shift_T(x: T, count: T) -> T {
    let distance = bitcast<U>(count);
    return select(T(0), x << u32(distance & (WIDTH - 1)), distance < WIDTH);
}

// By squaring; the exponent is not negative.
fn power_T(base: T, exponent: T) -> T {
    var result = T(1);
    var square = base;
    var left = bitcast<U>(exponent);
    while (left != 0) {
        result = select(result, result * square, (left & 1) == 1);
        square = square * square;
        left = left >> 1u;
    }
    return result;
}

//:

// Narrow types live in 32 bits; these bring a result back into the range.
fn wrap_i8(x: i32) -> i32 {
    return extractBits(x, 0u, 8u);
}

fn wrap_i16(x: i32) -> i32 {
    return extractBits(x, 0u, 16u);
}

fn wrap_u8(x: u32) -> u32 {
    return x & 0xffu;
}

fn wrap_u16(x: u32) -> u32 {
    return x & 0xffffu;
}

fn minimum_bool(x: bool, y: bool) -> bool {
    return x && y;
}

fn maximum_bool(x: bool, y: bool) -> bool {
    return x || y;
}
