// What is said by the bits of a floating-point number. Comparing bits is right for NaN and for subnormal numbers, also
// on devices whose arithmetic ignores them.

//:

// The dialect has no constants that are not finite; these bits are a variable, so that they do not count as constants.
fn infinity_f32() -> f32 {
    var bits = 0x7f800000u;
    return bitcast<f32>(bits);
}

fn nan_f32() -> f32 {
    var bits = 0x7fc00000u;
    return bitcast<f32>(bits);
}

fn infinity_f64() -> f64 {
    var bits = 0x7ff0000000000000lu;
    return bitcast<f64>(bits);
}

fn nan_f64() -> f64 {
    var bits = 0x7ff8000000000000lu;
    return bitcast<f64>(bits);
}

//: T=f32 U=u32 I=i32 SIGN=0x80000000u INFINITY=0x7f800000u SHIFT=23 BIAS=127
//: T=f64 U=u64 I=i64 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu SHIFT=52 BIAS=1023

fn isnan_T(x: T) -> bool {
    return (bitcast<U>(x) & ~SIGN) > INFINITY;
}

fn isinf_T(x: T) -> bool {
    return (bitcast<U>(x) & ~SIGN) == INFINITY;
}

fn isfinite_T(x: T) -> bool {
    return (bitcast<U>(x) & ~SIGN) < INFINITY;
}

fn signbit_T(x: T) -> bool {
    return bitcast<I>(x) < 0;
}

fn copysign_T(x: T, y: T) -> T {
    return bitcast<T>((bitcast<U>(x) & ~SIGN) | (bitcast<U>(y) & SIGN));
}

// 2^n, for exponents of normal numbers only.
fn power_of_two_T(n: i32) -> T {
    return bitcast<T>(U(n + BIAS) << SHIFT);
}

//: T=f32 U=u32 WIDTH=32 SHIFT=23 SIGN=0x80000000u MANTISSA=0x007fffffu BIAS=127
//: T=f64 U=u64 WIDTH=64 SHIFT=52 SIGN=0x8000000000000000lu MANTISSA=0x000ffffffffffffflu BIAS=1023

// x = significand * 2^(exponent - SHIFT), where the significand has SHIFT + 1 bits; not for 0, infinity and NaN.
fn significand_T(x: T) -> U {
    let bits = bitcast<U>(x) & ~SIGN;
    let subnormal = bits << u32(leading_zeros_U(bits) - (WIDTH - 1 - SHIFT));
    return select((bits & MANTISSA) | (U(1) << SHIFT), subnormal, bits <= MANTISSA);
}

// The exponent that belongs to it.
fn binary_exponent_T(x: T) -> i32 {
    let bits = bitcast<U>(x) & ~SIGN;
    return select(i32(bits >> SHIFT) - BIAS, WIDTH - SHIFT - BIAS - leading_zeros_U(bits), bits <= MANTISSA);
}

//: T=f32 U=u32 SHIFT=23 BIAS=127 SIGN=0x80000000u INFINITY=0x7f800000u MANTISSA=0x007fffffu
//: T=f64 U=u64 SHIFT=52 BIAS=1023 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu
//:   MANTISSA=0x000ffffffffffffflu

// The parts of frexp. As NumPy has it, 0, infinity and NaN have themselves and 0.
fn mantissa_T(x: T) -> T {
    let bits = bitcast<U>(x);
    if ((bits & ~SIGN) == 0 || (bits & ~SIGN) >= INFINITY) {
        return x;
    }
    return bitcast<T>((bits & SIGN) | (U(BIAS - 1) << SHIFT) | (significand_T(x) & MANTISSA));
}

//: T=f32 U=u32 SIGN=0x80000000u INFINITY=0x7f800000u
//: T=f64 U=u64 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu

fn exponent_T(x: T) -> i32 {
    let bits = bitcast<U>(x) & ~SIGN;
    return select(binary_exponent_T(x) + 1, 0, bits == 0 || bits >= INFINITY);
}

//: T=f32 U=u32 SHIFT=23 FIELD=0xff BIAS=127 SIGN=0x80000000u INFINITY=0x7f800000u MANTISSA=0x007fffffu
//: T=f64 U=u64 SHIFT=52 FIELD=0x7ff BIAS=1023 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu
//:   MANTISSA=0x000ffffffffffffflu

// x * 2^n rounded once, to nearest even, also where the result is subnormal.
fn ldexp_T(x: T, n: i32) -> T {
    let bits = bitcast<U>(x);
    if ((bits & ~SIGN) == 0 || (bits & ~SIGN) >= INFINITY) {
        return x;
    }
    let significand = significand_T(x);
    let field = binary_exponent_T(x) + clamp(n, -8192, 8192) + BIAS;
    var result = (significand & MANTISSA) | (U(max(field, 1)) << SHIFT);
    if (field >= FIELD) {
        result = INFINITY;
    } else if (field <= 0) {
        let distance = u32(min(1 - field, SHIFT + 2));
        let half = U(1) << (distance - 1u);
        let odd = (significand >> distance) & 1;
        result = (significand + (half - 1) + odd) >> distance;
    }
    return bitcast<T>(result | (bits & SIGN));
}

//: T=f32 U=u32 SIGN=0x80000000u INFINITY=0x7f800000u
//: T=f64 U=u64 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu

fn nextafter_T(x: T, y: T) -> T {
    let bits = bitcast<U>(x);
    let goal = bitcast<U>(y);
    if (isnan_T(x) || isnan_T(y)) {
        return nan_T();
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

// An unsigned number that sorts as NumPy sorts: both zeros equal, all NaNs equal and last.
fn order_key_T(x: T) -> U {
    let bits = bitcast<U>(x);
    let key = select(bits | SIGN, ~bits + 1, bits >= SIGN);
    return select(key, ~U(0), (bits & ~SIGN) > INFINITY);
}

//: I=i32 U=u32 SIGN=0x80000000u
//: I=i64 U=u64 SIGN=0x8000000000000000lu

fn order_key_I(x: I) -> U {
    return bitcast<U>(x) ^ SIGN;
}

//:

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

fn nextafter_f16(x: f32, y: f32) -> f32 {
    let bits = f16_to_bits(x);
    let goal = f16_to_bits(y);
    if ((bits & 0x7fffu) > 0x7c00u || (goal & 0x7fffu) > 0x7c00u) {
        return nan_f32();
    }
    // Unlike wider types, NumPy's float16 keeps its zero even when the other one has another sign.
    let arrived = bits == goal || ((bits | goal) & 0x7fffu) == 0u;
    return f16_from_bits(select(next_of_16_bits(bits, goal), bits, arrived));
}

// bfloat16 is the upper half of a float32.
fn bf16_from_bits(bits: u32) -> f32 {
    return bitcast<f32>(bits << 16u);
}

fn bf16_to_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, (bits >> 16u) | 0x40u, (bits & 0x7fffffffu) > 0x7f800000u);
}

fn round_bf16(x: f32) -> f32 {
    return bf16_from_bits(bf16_to_bits(x));
}

fn nextafter_bf16(x: f32, y: f32) -> f32 {
    let bits = bf16_to_bits(x);
    let goal = bf16_to_bits(y);
    if ((bits & 0x7fffu) > 0x7f80u || (goal & 0x7fffu) > 0x7f80u) {
        return nan_f32();
    }
    let arrived = bits == goal || ((bits | goal) & 0x7fffu) == 0u;
    return bf16_from_bits(select(next_of_16_bits(bits, goal), goal, arrived));
}

// The neighbour of one 16-bit number on the way to another one that differs from it.
fn next_of_16_bits(bits: u32, goal: u32) -> u32 {
    if ((bits & 0x7fffu) == 0u) {
        return (goal & 0x8000u) | 1u;
    }
    let away = ((bits ^ goal) & 0x8000u) == 0u && (goal & 0x7fffu) > (bits & 0x7fffu);
    return select(bits - 1u, bits + 1u, away);
}
