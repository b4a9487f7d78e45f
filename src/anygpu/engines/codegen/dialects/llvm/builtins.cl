// What OpenCL C has and LLVM has not, or only with some processors' instructions.

//: N=f32 T=float BITS=40 SHIFT=23 SIGN=0x80000000u U=uint
//: N=f64 T=double BITS=11 SHIFT=52 SIGN=0x8000000000000000ul U=ulong

// By long division of the significands, as many bits at a time as 64 have room for: exact.
static T long_fmod_N(T x, T y) {
    const ulong divisor = max((ulong)significand_N(y), 1ul);
    const long exponent = binary_exponent_N(y);
    ulong rest = (ulong)significand_N(x) % divisor;
    long left = binary_exponent_N(x) - exponent;
    while (left > 0) {
        const long some = min(left, (long)BITS);
        rest = (rest << some) % divisor;
        left = left - some;
    }
    const T value = copysign(ldexp_N(convert_T(rest), (int)(exponent - SHIFT)), x);
    const bool smaller = (as_U(x) & ~SIGN) < (as_U(y) & ~SIGN);
    return isnan(x) || isnan(y) || isinf(x) || y == 0.0 ? nan_N() : smaller ? x : value;
}

//:

// Where the quotient is not too large it is off by one at most, and the rest is exact: of wider numbers, or rounded once.
static float fmod_f32(float x, float y) {
    const double a = fabs((double)x);
    const double b = fabs((double)y);
    const double quotient = trunc(a / b);
    const double rest = a - quotient * b;
    const double back = rest < 0.0 ? rest + b : rest;
    float value = copysign((float)(back >= b ? back - b : back), x);
    const bool far = !(quotient < 536870912.0 && b < infinity_f64());
    if (far) {
        value = long_fmod_f32(x, y);
    }
    return value;
}

static double fmod_f64(double x, double y) {
    const double a = fabs(x);
    const double b = fabs(y);
    const double quotient = trunc(a / b);
    const double rest = fma(-quotient, b, a);
    const double back = rest < 0.0 ? rest + b : rest;
    double value = copysign(back >= b ? back - b : back, x);
    const bool far = !(quotient < 9007199254740992.0 && b < infinity_f64());
    if (far) {
        value = long_fmod_f64(x, y);
    }
    return value;
}

//: N=f32 T=float U=uint SIGN=0x80000000u
//: N=f64 T=double U=ulong SIGN=0x8000000000000000ul

static T nextafter_N(T x, T y) {
    const U bits = as_U(x);
    const U moved = (x < y) == (x > 0.0) ? bits + 1 : bits - 1;
    const U of_zero = (as_U(y) & SIGN) | 1;
    const T next = as_T(x == 0.0 ? of_zero : moved);
    return isnan(x) || isnan(y) ? nan_N() : x == y ? y : next;
}

//: N=f32 T=float U=uint SIGN=0x80000000u MANTISSA=0x007fffffu HALF=0x3f000000u
//: N=f64 T=double U=ulong SIGN=0x8000000000000000ul MANTISSA=0x000ffffffffffffful HALF=0x3fe0000000000000ul

// The parts of frexp. As NumPy has it, 0, infinity and NaN have themselves and 0.
static T mantissa_N(T x) {
    const T part = as_T((significand_N(x) & MANTISSA) | HALF | (as_U(x) & SIGN));
    return x == 0.0 || !isfinite(x) ? x : part;
}

static int exponent_N(T x) {
    return x == 0.0 || !isfinite(x) ? 0 : (int)binary_exponent_N(x) + 1;
}

//: N=f32 T=float
//: N=f64 T=double

// Powers whose exponent is known, with the special cases of C's pow: of -0.0 they are 0.0 and inf, of -inf inf and 0.0.
static T power_1_5_N(T x) {
    return isinf(x) ? fabs(x) : x * sqrt(x);
}

static T power_minus_0_5_N(T x) {
    return isinf(x) ? (T)0.0 : 1.0 / fabs(sqrt(x));
}

static T power_4_N(T x) {
    const T square = x * x;
    return square * square;
}

//: N=f32 T=float UNIT=8388608.0
//: N=f64 T=double UNIT=4503599627370496.0

// Whole numbers by arithmetic: the sum has no room for anything smaller than 1.
static T whole_N(T x) {
    const T a = fabs(x);
    return a < UNIT ? copysign((a + UNIT) - UNIT, x) : x;
}

static T rint_N(T x) {
    return whole_N(x);
}

static T floor_N(T x) {
    const T near = whole_N(x);
    return near > x ? near - 1.0 : near;
}

static T ceil_N(T x) {
    const T near = whole_N(x);
    return near < x ? copysign(near + 1.0, x) : near;
}

static T trunc_N(T x) {
    const T near = whole_N(fabs(x));
    return copysign(near > fabs(x) ? near - 1.0 : near, x);
}

//:

static float f16_from_bits(uint bits) {
    const uint magnitude = (bits & 0x7fffu) << 13;
    const uint finite = as_uint(as_float(magnitude) * 5.192296858534828e33f);
    const uint value = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite;
    return as_float(value | ((bits & 0x8000u) << 16));
}

// A normal number loses 13 bits of 23 and 112 of its exponent, a subnormal one is a multiple of 2^-24.
static uint f16_to_bits(float x) {
    const uint bits = as_uint(x) & 0x7fffffffu;
    const uint normal = (bits - 0x38000000u + 0xfffu + ((bits >> 13) & 1u)) >> 13;
    const uint subnormal = as_uint(as_float(bits) * 16777216.0f + 8388608.0f) - 0x4b000000u;
    const uint finite = bits < 0x38800000u ? subnormal : bits >= 0x477ff000u ? 0x7c00u : normal;
    return (isnan(x) ? 0x7e00u : finite) | ((as_uint(x) >> 16) & 0x8000u);
}

//: N=f32 T=float NEARLY=0.00001
//: N=f64 T=double NEARLY=0.000000000001

// The magnitude of a complex number, step by step as NumPy has it for arrays.
static T numpys_length_N(T re, T im) {
    const T a = fabs(re);
    const T b = fabs(im);
    const T larger = a >= b ? a : b;
    const T smaller = a >= b ? b : a;
    const T ratio = larger == 0.0 ? smaller : smaller / larger;
    const T length = larger * sqrt(fma(ratio, ratio, 1.0));
    const T known = isnan(re) || isnan(im) ? a + b : length;
    return isinf(re) || isinf(im) ? infinity_N() : known;
}

// Whether that is at most, or less than, a limit between 1e-100 and 1e100. Its square tells, but near the limit.
static bool numpys_length_less_equal_N(T re, T im, T limit) {
    const T square = re * re + im * im;
    const T bound = limit * limit;
    const bool surely = square < bound * (1.0 - NEARLY);
    bool is_below = square < bound * (1.0 + NEARLY);
    if (surely != is_below) {
        is_below = numpys_length_N(re, im) <= limit;
    }
    return is_below;
}

static bool numpys_length_less_N(T re, T im, T limit) {
    const T square = re * re + im * im;
    const T bound = limit * limit;
    const bool surely = square < bound * (1.0 - NEARLY);
    bool is_below = square < bound * (1.0 + NEARLY);
    if (surely != is_below) {
        is_below = numpys_length_N(re, im) < limit;
    }
    return is_below;
}

//:

// The C library's hypotf: both squares are exact as double.
static float numpys_hypot_f32(float x, float y) {
    const double a = (double)x;
    const double b = (double)y;
    const float length = (float)sqrt(a * a + b * b);
    return isinf(x) || isinf(y) ? infinity_f32() : length;
}
