// Exponentials, logarithms, hyperbolic functions, powers and the error function; those that end in _tail are among the
// polynomials.
//
// Compilers may reorder sums: where an exact difference matters, an operand had bits cleared by an integer operation,
// which their algebra does not see through. They may also take min, max and clamp of NaN for anything: every function
// asks the bits.

//: T=f32 U=u32 SHIFT=23 WHOLE=12583166.0
//: T=f64 U=u64 SHIFT=52 WHOLE=6755399441057790.0

// value * 2^n of a whole n in two steps, for neither 2^n nor the result has to be a normal number. The last bits of so
// large a number are a whole number: that of n and two biases.
fn scale_T(value: T, n: T) -> T {
    let exponents = bitcast<U>(n + WHOLE);
    let half = exponents >> 1u;
    return value * bitcast<T>(half << SHIFT) * bitcast<T>((exponents - half) << SHIFT);
}

//: T=f32 U=u32 SIGN=0x80000000u INFINITY=0x7f800000u FAR=0x42d00000u
//:   LOG2E=1.44269504 LN2HIGH=0.693359375 LN2LOW=-2.12194440e-4
//: T=f64 U=u64 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu FAR=0x4087500000000000lu
//:   LOG2E=1.4426950408889634 LN2HIGH=0.69314718036912382 LN2LOW=1.90821492927058782e-10

// e^x * 2^shift. Farther from 0 than FAR all is infinity or 0 anyway.
fn scaled_exp_T(x: T, shift: T) -> T {
    let bits = bitcast<U>(x);
    let magnitude = bits & ~SIGN;
    let t = bitcast<T>(min(magnitude, FAR) | (bits & SIGN));
    let n = round(t * LOG2E);
    let r = (t - n * LN2HIGH) - n * LN2LOW;
    let value = scale_T(1.0 + (r + r * r * expm1_tail_T(r)), n + shift);
    return select(value, x, magnitude > INFINITY);
}

fn exp_T(x: T) -> T {
    return scaled_exp_T(x, 0.0);
}

//: T=f32 LOW=-151.0 HIGH=129.0 LN2=0.693147181
//: T=f64 LOW=-1076.0 HIGH=1025.0 LN2=0.69314718055994531

fn exp2_T(x: T) -> T {
    let t = clamp(x, LOW, HIGH);
    let n = round(t);
    let r = (t - n) * LN2;
    return select(scale_T(1.0 + (r + r * r * expm1_tail_T(r)), n), x, isnan_T(x));
}

//: T=f32 U=u32 SHIFT=23 WHOLE=12583038.0 LOG2E=1.44269504 LN2HIGH=0.693359375 LN2LOW=-2.12194440e-4
//:   LOW=-26.0 HIGH=88.8
//: T=f64 U=u64 SHIFT=52 WHOLE=6755399441056766.0 LOG2E=1.4426950408889634 LN2HIGH=0.69314718036912382
//:   LN2LOW=1.90821492927058782e-10 LOW=-55.0 HIGH=709.9

// Half of 2^n (e^r - 1) + (2^n - 1) between the limits of expm1: 2^n may be just out of range.
fn half_expm1_T(x: T) -> T {
    let n = round(x * LOG2E);
    let r = (x - n * LN2HIGH) - n * LN2LOW;
    let p = r + r * r * expm1_tail_T(r);
    // As in scale_T, with the bias of one less than n.
    let half = bitcast<T>(bitcast<U>(n + WHOLE) << SHIFT);
    return half * p + (half - 0.5);
}

fn bounded_expm1_T(x: T) -> T {
    return half_expm1_T(x) * 2.0;
}

fn expm1_T(x: T) -> T {
    // Zero keeps its sign, NaN itself.
    return select(bounded_expm1_T(clamp(x, LOW, HIGH)), x, x == 0.0 || isnan_T(x));
}

fn sinh_T(x: T) -> T {
    let a = abs(x);
    let t = bounded_expm1_T(min(a, 1.0));
    let h = scaled_exp_T(a, -1.0);
    let magnitude = select(h - 0.25 / h, 0.5 * (t + t / (t + 1.0)), a < 1.0);
    return select(copysign_T(magnitude, x), x, isnan_T(x));
}

fn cosh_T(x: T) -> T {
    let h = scaled_exp_T(abs(x), -1.0);
    return select(h + 0.25 / h, x, isnan_T(x));
}

//: T=f32 U=u32 SIGN=0x80000000u INFINITY=0x7f800000u ALMOST=0x41200000u
//: T=f64 U=u64 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu ALMOST=0x4036000000000000lu

// Beyond ALMOST it is 1. Half of e^2x - 1 is h, and h / (h + 1) the result.
fn tanh_T(x: T) -> T {
    let magnitude = bitcast<U>(x) & ~SIGN;
    let h = half_expm1_T(2.0 * bitcast<T>(min(magnitude, ALMOST)));
    return select(copysign_T(h / (h + 1.0), x), x, magnitude > INFINITY);
}

//: T=f32 U=u32 SHIFT=23 BIAS=127 MANTISSA=0x007fffffu ONE=0x3f800000u ROOT=0x3f3504f3u
//: T=f64 U=u64 SHIFT=52 BIAS=1023 MANTISSA=0x000ffffffffffffflu ONE=0x3ff0000000000000lu
//:   ROOT=0x3fe6a09e667f3bcdlu

// x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), as the pair of k and f; x positive and finite.
fn split_T(x: T) -> vec2<T> {
    // By integers, for devices may take a subnormal number for 0.
    let subnormal = bitcast<U>(x) <= MANTISSA;
    let lifted = select(bitcast<U>(x), (significand_T(x) & MANTISSA) + ONE, subnormal);
    let bits = lifted + (ONE - ROOT);
    let k = i32(bits >> SHIFT) - BIAS + select(0, binary_exponent_T(x), subnormal);
    return vec2<T>(T(k), bitcast<T>((bits & MANTISSA) + ROOT) - 1.0);
}

//: T=f32 U=u32 SIGN=0x80000000u INFINITY=0x7f800000u
//: T=f64 U=u64 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu

// log(1 + f) for such an f. With s = f / (2 + f) it is 2 atanh(s), and 2 s = f - s f.
fn log_near_one_T(f: T) -> T {
    let s = f / (2.0 + f);
    let z = s * s;
    return f - s * (f - z * log_tail_T(z));
}

// The value of a logarithm where there is an ordinary one, and otherwise what logarithms of 0, infinity, negative
// numbers and NaN have in common.
fn log_or_special_T(x: T, value: T) -> T {
    let bits = bitcast<U>(x);
    if (bits - 1 < INFINITY - 1) {
        return value;
    }
    let of_zero = select(nan_T(), -infinity_T(), (bits & ~SIGN) == 0);
    return select(of_zero, x, bits == INFINITY || (bits & ~SIGN) > INFINITY);
}

//: T=f32 LN2HIGH=0.693359375 LN2LOW=-2.12194440e-4 LOG2E=1.44269504
//: T=f64 LN2HIGH=0.69314718036912382 LN2LOW=1.90821492927058782e-10 LOG2E=1.4426950408889634

fn log_T(x: T) -> T {
    let parts = split_T(x);
    return log_or_special_T(x, parts.x * LN2HIGH + (parts.x * LN2LOW + log_near_one_T(parts.y)));
}

fn log2_T(x: T) -> T {
    let parts = split_T(x);
    return log_or_special_T(x, parts.x + log_near_one_T(parts.y) * LOG2E);
}

//: T=f32 LOG10E=0.434294482 LOG10HIGH=0.30078125 LOG10LOW=2.48745664e-4
//: T=f64 LOG10E=0.43429448190325183 LOG10HIGH=0.30102999554947019 LOG10LOW=1.14511008980218387e-10

fn log10_T(x: T) -> T {
    let parts = split_T(x);
    return log_or_special_T(x, parts.x * LOG10HIGH + (parts.x * LOG10LOW + log_near_one_T(parts.y) * LOG10E));
}

//: T=f32 LN2HIGH=0.693359375 LN2LOW=-2.12194440e-4 LN2=0.693147181 LARGE=1.0e18
//: T=f64 LN2HIGH=0.69314718036912382 LN2LOW=1.90821492927058782e-10 LN2=0.69314718055994531 LARGE=1.0e150

// Near zero x itself is the f, and nothing is rounded; elsewhere rounding 1 + x costs less than one unit.
fn log1p_T(x: T) -> T {
    let near = x > -0.29 && x < 0.41;
    let parts = select(split_T(1.0 + x), vec2<T>(0.0, x), near);
    let value = parts.x * LN2HIGH + (parts.x * LN2LOW + log_near_one_T(parts.y));
    // Zero keeps its sign.
    return select(select(log_or_special_T(1.0 + x, value), value, near), x, x == 0.0);
}

// log(a + sqrt(a^2 + 1)) without the cancellation; where the square would overflow it is log(2 a).
fn asinh_T(x: T) -> T {
    let a = abs(x);
    let square = a * a;
    let u = select(a, a + square / (1.0 + sqrt(1.0 + square)), a < LARGE);
    return copysign_T(log1p_T(u) + select(T(LN2), T(0.0), a < LARGE), x);
}

fn acosh_T(x: T) -> T {
    let t = x - 1.0;
    let u = select(x, t + sqrt(2.0 * t + t * t), x < LARGE);
    return select(log1p_T(u) + select(T(LN2), T(0.0), x < LARGE), nan_T(), x < 1.0);
}

fn atanh_T(x: T) -> T {
    let a = abs(x);
    return copysign_T(0.5 * log1p_T((2.0 * a) / (1.0 - a)), x);
}

//: T=f32 U=u32 UPPER=0xfffff000u
//: T=f64 U=u64 UPPER=0xfffffffff8000000lu

// The upper half of the bits: the product of two such numbers is exact, and so is the difference to the whole.
fn upper_T(x: T) -> T {
    return bitcast<T>(bitcast<U>(x) & UPPER);
}

// f / (2 + f) as the sum of two numbers: the second is what the division by the upper half left over.
fn divided_T(f: T) -> vec2<T> {
    let s = f / (2.0 + f);
    let high = upper_T(s);
    let f_high = upper_T(f);
    let rest = ((f - 2.0 * high) - high * f_high) - high * (f - f_high);
    return vec2<T>(high, rest / (2.0 + f));
}

//:

// atanh(f / (2 + f)), half the logarithm of 1 + f, as the sum of two numbers, of which the first is an upper half.
fn half_log_f32(f: f32) -> vec2<f32> {
    let s = divided_f32(f);
    let whole = s.x + s.y;
    let z = whole * whole;
    return vec2<f32>(s.x, s.y + whole * (z * atanh_tail_f32(z)));
}

// The same, where the cube of s is taken in two parts as well: what counts in the end are ten more bits.
fn half_log_f64(f: f64) -> vec2<f64> {
    let s = divided_f64(f);
    let whole = s.x + s.y;
    let z = whole * whole;
    let square = s.x * s.x;
    let square_high = upper_f64(square);
    let cube = s.x * square_high;
    let cube_high = upper_f64(cube);
    // A third, as 0.333...3 of 26 bits and the rest.
    let third = cube_high * 0.33333332836627960205078125;
    let cut_off = (cube - cube_high) + s.x * (square - square_high);
    let finer = cut_off / 3.0 + cube_high * 4.96705373128255208e-9;
    let high = upper_f64(s.x + third);
    let rest = finer + (square + s.x * s.y) * s.y + whole * (z * z * atanh_tail_f64(z));
    let low = ((s.x - high) + third) + (s.y + rest);
    return vec2<f64>(high, low);
}

//: T=f32 HIGH=129.0 LOW=-151.0 LIMIT=1.8446744e19 TWOHIGH=2.884765625 TWOLOW=6.244567779e-4 TWO=2.88539008
//:   LN2=0.693147181
//: T=f64 HIGH=1025.0 LOW=-1076.0 LIMIT=1.0e30 TWOHIGH=2.8853900432586669921875 TWOLOW=3.85192598225323494e-8
//:   TWO=2.8853900817779268 LN2=0.69314718055994531

// 2^(y log2(x)) for a positive x, with the logarithm as the sum of two numbers: an exponent of a thousand leaves ten
// bits less for the result, which one number would not have.
fn positive_power_T(x: T, y: T) -> T {
    let parts = split_T(x);
    let half_log = half_log_T(parts.y);
    let log_high = half_log.x * TWOHIGH;
    let log_low = half_log.x * TWOLOW + half_log.y * TWO;
    let high = upper_T(parts.x + (log_high + log_low));
    let low = ((parts.x - high) + log_high) + log_low;
    let power = clamp(y, -LIMIT, LIMIT);
    let power_high = upper_T(power);
    let exponent_high = power_high * high;
    let exponent_low = (power - power_high) * high + power * low;
    let exponent = exponent_high + exponent_low;
    let n = round(clamp(exponent, LOW, HIGH));
    let r = ((exponent_high - n) + exponent_low) * LN2;
    let value = scale_T(1.0 + (r + r * r * expm1_tail_T(r)), n);
    return select(select(value, infinity_T(), exponent > HIGH), 0.0, exponent < LOW);
}

//: T=f32 U=u32 SIGN=0x80000000u INFINITY=0x7f800000u ONE=0x3f800000u LIMIT=4.0
//: T=f64 U=u64 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu ONE=0x3ff0000000000000lu LIMIT=6.0

// The special cases are those of C's pow.
fn power_T(x: T, y: T) -> T {
    let base = bitcast<U>(x) & ~SIGN;
    if (bitcast<U>(x) == ONE || (bitcast<U>(y) & ~SIGN) == 0) {
        return 1.0;
    }
    if (isnan_T(x) || isnan_T(y)) {
        return nan_T();
    }
    let whole = trunc(y) == y;
    let odd = whole && trunc(0.5 * y) != 0.5 * y;
    let negative = bitcast<U>(x) >= SIGN;
    var result = positive_power_T(bitcast<T>(base), y);
    if (base == 0 || base == INFINITY) {
        result = select(0.0, infinity_T(), (base == 0) == (bitcast<U>(y) >= SIGN));
    } else if (negative && !whole) {
        result = nan_T();
    } else if (base == ONE) {
        result = 1.0;
    }
    return select(result, -result, negative && odd);
}

// Up to 1 by its series, then as 1 - e^(log erfc); beyond the limit it is 1.
fn erf_T(x: T) -> T {
    let a = abs(x);
    let near = x + x * erf_tail_T(x * x);
    let far = 1.0 - scaled_exp_T(log_erfc_T(clamp(a, 1.0, LIMIT) - 1.0), 0.0);
    return select(select(copysign_T(far, x), near, a < 1.0), x, isnan_T(x));
}
