// Floating-point arithmetic beyond the operators and the built-in functions.

//:: N=f32 T=float I=int U=uint SIGN=0x80000000u INFINITE=0x7f800000u ONE=0x3f800000u
//:: N=f64 T=double I=long U=ulong SIGN=0x8000000000000000ul INFINITE=0x7ff0000000000000ul ONE=0x3ff0000000000000ul

static T reciprocal_N(T x) {
    return 1.0 / x;
}

#ifdef WGSL
fn sign_N(x: T) -> T {
    let bits = bitcast<U>(x);
    let magnitude = bits & ~SIGN;
    let one = select((bits & SIGN) | ONE, 0, magnitude == 0);
    return bitcast<T>(select(one, bits, magnitude > INFINITE));
}

// The dialect's root, for what it promises something; zeros, infinity and NaN are their own.
fn sqrt_N(x: T) -> T {
    let bits = bitcast<U>(x);
    if ((bits & ~SIGN) == 0 || (bits & ~SIGN) > INFINITE || bits == INFINITE) {
        return x;
    }
    return select(sqrt(x), nan_N(), bits >= SIGN);
}
#else
static T sign_N(T x) {
    const T one = x < 0.0 ? (T)-1.0 : (T)1.0;
    return isnan(x) ? x : x == 0.0 ? (T)0.0 : one;
}
#endif

// WGSL leaves open what its own make of NaN, and of two zeros, and those of OpenCL C prefer a number to NaN. Here NaN
// wins, and the second of two equals.
static T minimum_N(T x, T y) {
    return x < y || isnan(x) ? x : y;
}

static T maximum_N(T x, T y) {
    return x > y || isnan(x) ? x : y;
}

//: N=f32 T=float U=uint SIGN=0x80000000u INFINITE=0x7f800000u SHIFT=23 ROOM=8
//: N=f64 T=double U=ulong SIGN=0x8000000000000000ul INFINITE=0x7ff0000000000000ul SHIFT=52 ROOM=11

#ifdef WGSL
// Exact, as fmod must be: long division of the significands, ROOM bits at a time, which is all of it in one step
// when the operands are within 2^ROOM of each other.
fn fmod_N(x: T, y: T) -> T {
    let dividend = bitcast<U>(x) & ~SIGN;
    let divisor = bitcast<U>(y) & ~SIGN;
    if (divisor == 0 || divisor > INFINITE || dividend >= INFINITE) {
        return nan_N();
    }
    if (dividend < divisor) {
        return x;
    }
    let below = significand_N(y);
    let exponent = binary_exponent_N(y);
    var rest = significand_N(x) % below;
    var left = binary_exponent_N(x) - exponent;
    while (left > 0) {
        let step = min(left, ROOM);
        rest = (rest << u32(step)) % below;
        left -= step;
    }
    return copysign_N(ldexp_N(T(rest), exponent - SHIFT), x);
}
#endif

// For single numbers only, because fmod is: given vectors of mixed special values, that of PoCL does not end.
// As in NumPy: the sign of the divisor, and of its zero.
static T remainder_N(T x, T y) {
    const T rest = fmod(x, y);
    const T moved = (rest < 0.0) != (y < 0.0) ? rest + y : rest;
    return rest == 0.0 ? copysign(rest, y) : moved;
}

// As in NumPy: from the exact rest, so that the quotient is a whole number but for rounding.
static T floor_divide_N(T x, T y) {
    const T rest = fmod(x, y);
    const T below = rest != 0.0 && (rest < 0.0) != (y < 0.0) ? (T)1.0 : (T)0.0;
    const T quotient = (x - rest) / y - below;
    const T floored = floor(quotient);
    const T whole = quotient - floored > 0.5 ? floored + 1.0 : floored;
    return y == 0.0 ? x / y : quotient == 0.0 ? copysign(quotient, x / y) : whole;
}

//:: N=f32 T=float I=int U=uint SIGN=0x80000000u INFINITE=0x7f800000u LARGE=126
//:: N=f64 T=double I=long U=ulong SIGN=0x8000000000000000ul INFINITE=0x7ff0000000000000ul LARGE=1022

// Both are scaled by the same power of two, so that no square leaves the range.
#ifdef WGSL
fn hypot_N(x: T, y: T) -> T {
    let a = bitcast<U>(x) & ~SIGN;
    let b = bitcast<U>(y) & ~SIGN;
    if (a == INFINITE || b == INFINITE) {
        return infinity_N();
    }
    if (a == 0 || b == 0) {
        return bitcast<T>(a | b);
    }
    let exponent = clamp(binary_exponent_N(bitcast<T>(max(a, b))), -LARGE, LARGE);
    let scale = power_of_two_N(-exponent);
    let p = bitcast<T>(a) * scale;
    let q = bitcast<T>(b) * scale;
    return sqrt(p * p + q * q) * power_of_two_N(exponent);
}
#else
static T hypot_N(T x, T y) {
    const T a = fabs(x);
    const T b = fabs(y);
    const I exponent = clamp(binary_exponent_N(fmax(a, b)), (I)-LARGE, (I)LARGE);
    const T scale = power_of_two_N(-exponent);
    const T p = a * scale;
    const T q = b * scale;
    const T length = sqrt(p * p + q * q) * power_of_two_N(exponent);
    const T along_axis = a == 0.0 || b == 0.0 ? a + b : length;
    return isinf(x) || isinf(y) ? infinity_N() : along_axis;
}
#endif

//:: N=f32 T=float I=int U=uint SIGN=0x80000000u MANTISSA=0x007fffffu ONE=0x3f800000u ROUNDS=1 UNIT=12582912.0
//:: N=f64 T=double I=long U=ulong SIGN=0x8000000000000000ul MANTISSA=0x000ffffffffffffful ONE=0x3ff0000000000000ul
//:   ROUNDS=2 UNIT=6755399441055744.0

// x = value * 8^third with value in [1, 8); a parabola gives 6 bits of its root, each of Halley's steps three times
// as many as there were, and a last step of Newton's takes back what rounding did.
static T cbrt_N(T x) {
    const I exponent = binary_exponent_N(x);
    const I third = (exponent + 3000) / 3 - 1000;
    const T value = as_T((significand_N(x) & MANTISSA) | ONE) * power_of_two_N(exponent - 3 * third);
    T root = 0.76293652 + value * (0.26789327 - value * 0.01466153);
    for (int round = 0; round < ROUNDS; round++) {
        const T cube = root * root * root;
        root = root * ((cube + 2.0 * value) / (2.0 * cube + value));
    }
    const T square = root * root;
    root = root - (square * root - value) / (3.0 * square);
#ifdef WGSL
    // By bits, for devices may take a subnormal number for 0.
    return (as_U(x) & ~SIGN) == 0 || !isfinite(x) ? x : copysign(root * power_of_two_N(third), x);
#else
    return x == 0.0 || !isfinite(x) ? x : copysign(root * power_of_two_N(third), x);
#endif
}

#ifdef WGSL
fn nearest_N(x: T) -> T {
    return round(x);
}
#else
// The nearest whole number to one less than 2^22 or 2^51: the sum has no room for anything smaller. Unlike rint, which
// some compilers call for one number at a time, these are two instructions.
static T nearest_N(T x) {
    return (x + UNIT) - UNIT;
}
#endif
