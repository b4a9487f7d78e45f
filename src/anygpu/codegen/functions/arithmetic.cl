// Floating-point arithmetic beyond the operators and the built-in functions.

//:: N=f32 T=float I=int
//:: N=f64 T=double I=long

static T reciprocal_N(T x) {
    return 1.0 / x;
}

static T sign_N(T x) {
    const T one = x < 0.0 ? (T)-1.0 : (T)1.0;
    return isnan(x) ? x : x == 0.0 ? (T)0.0 : one;
}

// The built-in ones prefer a number to NaN.
static T minimum_N(T x, T y) {
    return x < y || isnan(x) ? x : y;
}

static T maximum_N(T x, T y) {
    return x > y || isnan(x) ? x : y;
}

//: N=f32 T=float
//: N=f64 T=double

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

//:: N=f32 T=float I=int LARGE=126
//:: N=f64 T=double I=long LARGE=1022

// Both are scaled by the same power of two, so that no square leaves the range.
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

//:: N=f32 T=float I=int MANTISSA=0x007fffffu ONE=0x3f800000u ROUNDS=1 UNIT=12582912.0
//:: N=f64 T=double I=long MANTISSA=0x000ffffffffffffful ONE=0x3ff0000000000000ul ROUNDS=2
//:   UNIT=6755399441055744.0

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
    return x == 0.0 || !isfinite(x) ? x : copysign(root * power_of_two_N(third), x);
}

// The nearest whole number to one less than 2^22 or 2^51: the sum has no room for anything smaller. Unlike rint, which
// some compilers call for one number at a time, these are two instructions.
static T nearest_N(T x) {
    return (x + UNIT) - UNIT;
}
