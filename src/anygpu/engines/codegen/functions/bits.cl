// What is said by the bits of a floating-point number. In WGSL that is more than in OpenCL C: comparing bits is right for
// NaN and for subnormal numbers, also on devices whose arithmetic ignores them.

//:: N=f32 T=float U=uint INFINITE=0x7f800000u QUIET=0x7fc00000u
//:: N=f64 T=double U=ulong INFINITE=0x7ff0000000000000ul QUIET=0x7ff8000000000000ul

#ifdef WGSL
// The dialect has no constants that are not finite; these bits are a variable, so that they do not count as constants.
fn infinity_N() -> T {
    var bits = INFINITE;
    return bitcast<T>(bits);
}

fn nan_N() -> T {
    var bits = QUIET;
    return bitcast<T>(bits);
}
#else
static T infinity_N(void) {
    return as_T((U)INFINITE);
}

static T nan_N(void) {
    return as_T((U)QUIET);
}
#endif

//:: N=f32 T=float U=uint I=int SHIFT=23 BIAS=127 WIDTH=32 SIGN=0x80000000u MANTISSA=0x007fffffu INFINITE=0x7f800000u
//:: N=f64 T=double U=ulong I=long SHIFT=52 BIAS=1023 WIDTH=64 SIGN=0x8000000000000000ul
//:   MANTISSA=0x000ffffffffffffful INFINITE=0x7ff0000000000000ul

// 2^n, for exponents of normal numbers only.
#ifdef WGSL
fn power_of_two_N(n: i32) -> T {
    return bitcast<T>(U(n + BIAS) << SHIFT);
}
#else
static T power_of_two_N(I n) {
    return as_T((n + BIAS) << SHIFT);
}
#endif

// x = significand * 2^(exponent - SHIFT), where the significand has SHIFT + 1 bits; not for 0, infinity and NaN.
#ifdef WGSL
fn significand_N(x: T) -> U {
    let bits = bitcast<U>(x) & ~SIGN;
    let subnormal = bits << u32(leading_zeros_U(bits) - (WIDTH - 1 - SHIFT));
    return select((bits & MANTISSA) | (U(1) << SHIFT), subnormal, bits <= MANTISSA);
}
#else
static U significand_N(T x) {
    const U bits = as_U(x) & ~SIGN;
    const U subnormal = bits << ((clz(bits) - (WIDTH - 1 - SHIFT)) & (WIDTH - 1));
    return bits <= MANTISSA ? subnormal : (bits & MANTISSA) | ((U)1 << SHIFT);
}
#endif

// The exponent that belongs to it.
#ifdef WGSL
fn binary_exponent_N(x: T) -> i32 {
    let bits = bitcast<U>(x) & ~SIGN;
    return select(i32(bits >> SHIFT) - BIAS, WIDTH - SHIFT - BIAS - leading_zeros_U(bits), bits <= MANTISSA);
}
#else
static I binary_exponent_N(T x) {
    const U bits = as_U(x) & ~SIGN;
    return bits <= MANTISSA ? WIDTH - SHIFT - BIAS - as_I(clz(bits)) : as_I(bits >> SHIFT) - BIAS;
}
#endif

#ifdef WGSL
fn isnan_N(x: T) -> bool {
    return (bitcast<U>(x) & ~SIGN) > INFINITE;
}

fn isinf_N(x: T) -> bool {
    return (bitcast<U>(x) & ~SIGN) == INFINITE;
}

fn isfinite_N(x: T) -> bool {
    return (bitcast<U>(x) & ~SIGN) < INFINITE;
}

fn signbit_N(x: T) -> bool {
    return bitcast<U>(x) >= SIGN;
}

fn copysign_N(x: T, y: T) -> T {
    return bitcast<T>((bitcast<U>(x) & ~SIGN) | (bitcast<U>(y) & SIGN));
}
#endif

//: N=f32 T=float U=uint I=int SHIFT=23 FIELD=0xff BIAS=127 SIGN=0x80000000u INFINITE=0x7f800000u MANTISSA=0x007fffffu
//: N=f64 T=double U=ulong I=long SHIFT=52 FIELD=0x7ff BIAS=1023 SIGN=0x8000000000000000ul
//:   INFINITE=0x7ff0000000000000ul MANTISSA=0x000ffffffffffffful

// The parts of frexp. As NumPy has it, 0, infinity and NaN have themselves and 0.
#ifdef WGSL
fn mantissa_N(x: T) -> T {
    let bits = bitcast<U>(x);
    if ((bits & ~SIGN) == 0 || (bits & ~SIGN) >= INFINITE) {
        return x;
    }
    return bitcast<T>((bits & SIGN) | (U(BIAS - 1) << SHIFT) | (significand_N(x) & MANTISSA));
}

fn exponent_N(x: T) -> i32 {
    let bits = bitcast<U>(x) & ~SIGN;
    return select(binary_exponent_N(x) + 1, 0, bits == 0 || bits >= INFINITE);
}
#else
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
#endif

// x * 2^n rounded once, to nearest even, also where the result is subnormal: PoCL's own rounds twice there.
#ifdef WGSL
fn ldexp_N(x: T, n: i32) -> T {
    let bits = bitcast<U>(x);
    if ((bits & ~SIGN) == 0 || (bits & ~SIGN) >= INFINITE) {
        return x;
    }
    let significand = significand_N(x);
    let field = binary_exponent_N(x) + clamp(n, -8192, 8192) + BIAS;
    var result = (significand & MANTISSA) | (U(max(field, 1)) << SHIFT);
    if (field >= FIELD) {
        result = INFINITE;
    } else if (field <= 0) {
        let distance = u32(min(1 - field, SHIFT + 2));
        let half = U(1) << (distance - 1u);
        let odd = (significand >> distance) & 1;
        result = (significand + (half - 1) + odd) >> distance;
    }
    return bitcast<T>(result | (bits & SIGN));
}

fn nextafter_N(x: T, y: T) -> T {
    let bits = bitcast<U>(x);
    let goal = bitcast<U>(y);
    if (isnan_N(x) || isnan_N(y)) {
        return nan_N();
    }
    if (bits == goal || ((bits | goal) & ~SIGN) == 0) {
        return y;
    }
    if ((bits & ~SIGN) == 0) {
        return bitcast<T>((goal & SIGN) | 1);
    }
    // Away from zero means: the same sign and a greater magnitude.
    let away = ((bits ^ goal) & SIGN) == 0 && (goal & ~SIGN) > (bits & ~SIGN);
    return bitcast<T>(select(bits - 1, bits + 1, away));
}
#else
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
#endif

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

#ifdef WGSL
// float16, held in 16 of the 32 bits of an integer. Everything by integers, for devices differ in how they round
// and in whether they keep subnormal numbers.
fn f16_from_bits(bits: u32) -> f32 {
    let magnitude = bits & 0x7fffu;
    // Infinity and NaN move from the top of one range of exponents to the top of the other.
    let rebias = select(0x38000000u, 0x70000000u, magnitude >= 0x7c00u);
    let normal = bitcast<f32>((magnitude << 13u) + rebias);
    let value = select(normal, f32(magnitude) * 5.9604644775390625e-8, magnitude < 0x400u);
    return bitcast<f32>(bitcast<u32>(value) | ((bits & 0x8000u) << 16u));
}

fn f16_to_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7fffffffu;
    let sign = (bits >> 16u) & 0x8000u;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (magnitude >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    if (magnitude < 0x38800000u) {
        // A multiple of 2^-24: the significand moves right by what its exponent lacks.
        let distance = min(126u - (magnitude >> 23u), 25u);
        let significand = (magnitude & 0x7fffffu) | 0x800000u;
        return sign | ((significand + (1u << (distance - 1u)) - 1u + ((significand >> distance) & 1u)) >> distance);
    }
    return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u);
}

fn round_f16(x: f32) -> f32 {
    return f16_from_bits(f16_to_bits(x));
}
#else
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
#endif

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
