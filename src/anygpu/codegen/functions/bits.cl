// What is said by the bits of a floating-point number.

//:: N=f32 T=float U=uint INFINITE=0x7f800000u QUIET=0x7fc00000u
//:: N=f64 T=double U=ulong INFINITE=0x7ff0000000000000ul QUIET=0x7ff8000000000000ul

static T infinity_N(void) {
    return as_T((U)INFINITE);
}

static T nan_N(void) {
    return as_T((U)QUIET);
}

//:: N=f32 T=float U=uint I=int SHIFT=23 BIAS=127 WIDTH=32 SIGN=0x80000000u MANTISSA=0x007fffffu
//:: N=f64 T=double U=ulong I=long SHIFT=52 BIAS=1023 WIDTH=64 SIGN=0x8000000000000000ul
//:   MANTISSA=0x000ffffffffffffful

// 2^n, for exponents of normal numbers only.
static T power_of_two_N(I n) {
    return as_T((n + BIAS) << SHIFT);
}

// x = significand * 2^(exponent - SHIFT), where the significand has SHIFT + 1 bits; not for 0, infinity and NaN.
static U significand_N(T x) {
    const U bits = as_U(x) & ~SIGN;
    const U subnormal = bits << ((clz(bits) - (WIDTH - 1 - SHIFT)) & (WIDTH - 1));
    return bits <= MANTISSA ? subnormal : (bits & MANTISSA) | ((U)1 << SHIFT);
}

// The exponent that belongs to it.
static I binary_exponent_N(T x) {
    const U bits = as_U(x) & ~SIGN;
    return bits <= MANTISSA ? WIDTH - SHIFT - BIAS - as_I(clz(bits)) : as_I(bits >> SHIFT) - BIAS;
}

//: N=f32 T=float
//: N=f64 T=double

// The parts of frexp. As NumPy has it, 0, infinity and NaN have themselves and 0.
static T mantissa_N(T x) {
    int exponent;
    const T part = frexp(x, &exponent);
    return isfinite(x) ? part : x;
}

static int exponent_N(T x) {
    int exponent;
    frexp(x, &exponent);
    return isfinite(x) ? exponent : 0;
}

//: N=f32 T=float U=uint I=int SHIFT=23 FIELD=0xff BIAS=127 SIGN=0x80000000u INFINITE=0x7f800000u MANTISSA=0x007fffffu
//: N=f64 T=double U=ulong I=long SHIFT=52 FIELD=0x7ff BIAS=1023 SIGN=0x8000000000000000ul
//:   INFINITE=0x7ff0000000000000ul MANTISSA=0x000ffffffffffffful

// x * 2^n rounded once, to nearest even, also where the result is subnormal: PoCL's own rounds twice there.
static T ldexp_N(T x, int n) {
    const U bits = as_U(x);
    const U significand = significand_N(x);
    const I field = binary_exponent_N(x) + clamp(n, -8192, 8192) + BIAS;
    const U distance = (U)clamp(1 - field, (I)1, (I)(SHIFT + 2));
    const U odd = (significand >> distance) & 1;
    const U subnormal = (significand + (((U)1 << (distance - 1)) - 1) + odd) >> distance;
    const U normal = (significand & MANTISSA) | ((U)clamp(field, (I)1, (I)FIELD) << SHIFT);
    const U result = field >= FIELD ? INFINITE : field <= 0 ? subnormal : normal;
    return (bits & ~SIGN) == 0 || (bits & ~SIGN) >= INFINITE ? x : as_T(result | (bits & SIGN));
}

//: N=f32 T=float U=uint SIGN=0x80000000u
//: N=f64 T=double U=ulong SIGN=0x8000000000000000ul

// An unsigned number that sorts as NumPy sorts: both zeros equal, all NaNs equal and last.
static U order_key_N(T x) {
    const U bits = as_U(x);
    const U key = bits >= SIGN ? 0 - bits : bits | SIGN;
    return isnan(x) ? ~(U)0 : key;
}

//: N=i32 T=int U=uint SIGN=0x80000000u
//: N=i64 T=long U=ulong SIGN=0x8000000000000000ul

static U order_key_N(T x) {
    return (U)x ^ SIGN;
}

//:

// float16, held in 16 of the 32 bits of an integer. The two conversions need no support for half.
static float f16_from_bits(uint bits) {
    const ushort narrow = (ushort)bits;
    return vload_half(0, (const half *)&narrow);
}

static uint f16_to_bits(float x) {
    ushort narrow;
    vstore_half_rte(x, 0, (half *)&narrow);
    return narrow;
}

// By arithmetic: a normal number loses 13 bits, a subnormal one is a multiple of 2^-24.
static float round_f16(float x) {
    const uint bits = as_uint(x) & 0x7fffffffu;
    const uint normal = (bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu;
    const float subnormal = nearest_f32(as_float(bits) * 16777216.0f) * 5.9604644775390625e-8f;
    const uint finite = bits < 0x38800000u ? as_uint(subnormal) : bits >= 0x477ff000u ? 0x7f800000u : normal;
    return copysign(isnan(x) ? x : as_float(finite), x);
}

static float nextafter_f16(float x, float y) {
    const uint bits = f16_to_bits(x);
    const uint goal = f16_to_bits(y);
    if (isnan(x) || isnan(y)) {
        return nan_f32();
    }
    // Unlike wider types, NumPy's float16 keeps its zero even when the other one has another sign.
    const bool arrived = bits == goal || ((bits | goal) & 0x7fffu) == 0;
    return f16_from_bits(arrived ? bits : next_of_16_bits(bits, goal));
}

// bfloat16 is the upper half of a float32.
static float bf16_from_bits(uint bits) {
    return as_float(bits << 16);
}

static uint bf16_to_bits(float x) {
    const uint bits = as_uint(x);
    return isnan(x) ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

static float round_bf16(float x) {
    return bf16_from_bits(bf16_to_bits(x));
}

static float nextafter_bf16(float x, float y) {
    const uint bits = bf16_to_bits(x);
    const uint goal = bf16_to_bits(y);
    if (isnan(x) || isnan(y)) {
        return nan_f32();
    }
    const bool arrived = bits == goal || ((bits | goal) & 0x7fffu) == 0;
    return bf16_from_bits(arrived ? goal : next_of_16_bits(bits, goal));
}

// The neighbour of one 16-bit number on the way to another one that differs from it.
static uint next_of_16_bits(uint bits, uint goal) {
    if ((bits & 0x7fffu) == 0) {
        return (goal & 0x8000u) | 1u;
    }
    const bool away = ((bits ^ goal) & 0x8000u) == 0 && (goal & 0x7fffu) > (bits & 0x7fffu);
    return away ? bits + 1 : bits - 1;
}
