// Exponentials, logarithms, hyperbolic functions, powers and the error function; those that end in _tail are
// polynomials.
//
// OpenCL C promises the accuracy of its own functions, but not their speed: on processors these are twice as fast
// with vectors, and ten to a hundred times with single numbers, of which compilers make vectors only here. A product and
// a sum may be rounded once where a function says so (FP_CONTRACT): there that only takes an error away.
//
// Compilers of WGSL may reorder sums: where an exact difference matters, an operand had bits cleared by an integer
// operation, which their algebra does not see through. They may also take min, max and clamp of NaN for anything: there
// everything asks the bits.

//:: N=f32 T=float I=int U=uint SHIFT=23 WHOLE=12583166.0
//:: N=f64 T=double I=long U=ulong SHIFT=52 WHOLE=6755399441057790.0

// value * 2^n in two steps, for neither 2^n nor the result has to be a normal number.
#ifdef WGSL
// The last bits of so large a number are a whole number: that of n, which is one, and two biases.
fn scale_N(value: T, n: T) -> T {
    let exponents = bitcast<U>(n + WHOLE);
    let half = exponents >> 1u;
    return value * bitcast<T>(half << SHIFT) * bitcast<T>((exponents - half) << SHIFT);
}
#else
static T scale_N(T value, I n) {
    const I first = n >> 1;
    return value * power_of_two_N(first) * power_of_two_N(n - first);
}
#endif

//:: N=f32 T=float U=uint SIGN=0x80000000u INFINITE=0x7f800000u FAR=0x42d00000u LOW=-104.0 HIGH=91.0 LOG2E=1.44269504
//:   LN2HIGH=0.693359375 LN2LOW=-2.12194440e-4 UNIT=12582912.0 SHIFT=23 BIAS=127
//:: N=f64 T=double U=ulong SIGN=0x8000000000000000ul INFINITE=0x7ff0000000000000ul FAR=0x4087500000000000ul LOW=-746.0
//:   HIGH=712.0 LOG2E=1.4426950408889634 LN2HIGH=0.69314718036912382 LN2LOW=1.90821492927058782e-10
//:   UNIT=6755399441055744.0 SHIFT=52 BIAS=1023

// e^x * 2^shift. Farther from 0 than some limits all is infinity or 0 anyway.
#ifdef WGSL
fn scaled_exp_N(x: T, shift: T) -> T {
    let bits = bitcast<U>(x);
    let magnitude = bits & ~SIGN;
    let t = bitcast<T>(min(magnitude, FAR) | (bits & SIGN));
    let n = round(t * LOG2E);
    let r = (t - n * LN2HIGH) - n * LN2LOW;
    let value = scale_N(1.0 + (r + r * r * expm1_tail_N(r)), n + shift);
    return select(value, x, magnitude > INFINITE);
}
#else
// Limits are taken so that NaN stays what it is. The sum with UNIT rounds to a whole number n, as nearest_N does, and has
// n in its lowest bits: shifted up, all that is above is gone, without a sign that could overflow. 2^n comes in two
// factors, for neither 2^n nor the result has to be a normal number.
static T scaled_exp_N(T x, int shift) {
    #pragma OPENCL FP_CONTRACT ON
    const T bounded = (T)LOW > x ? (T)LOW : x;
    const T t = (T)HIGH < bounded ? (T)HIGH : bounded;
    const T sum = t * LOG2E + UNIT;
    const T n = sum - UNIT;
    const T r = (t - n * LN2HIGH) - n * LN2LOW;
    const T tail = r * r * expm1_tail_N(r) + r;
    const U exponent = as_U(sum) + (U)shift;
    const U half_of_it = exponent >> 1;
    const T first = as_T((half_of_it << SHIFT) + ((U)BIAS << SHIFT));
    const T second = as_T(((exponent - half_of_it) << SHIFT) + ((U)BIAS << SHIFT));
    return (first * tail + first) * second;
}
#endif

//:: N=f32 T=float I=int LOW=-151.0 HIGH=129.0 LN2=0.693147181
//:: N=f64 T=double I=long LOW=-1076.0 HIGH=1025.0 LN2=0.69314718055994531

static T exp_N(T x) {
    return scaled_exp_N(x, 0);
}

#ifdef WGSL
fn exp2_N(x: T) -> T {
    let t = clamp(x, LOW, HIGH);
    let n = round(t);
    let r = (t - n) * LN2;
    return select(scale_N(1.0 + (r + r * r * expm1_tail_N(r)), n), x, isnan_N(x));
}
#else
static T exp2_N(T x) {
    #pragma OPENCL FP_CONTRACT ON
    const T t = clamp(x, LOW, HIGH);
    const T n = nearest_N(t);
    const T r = (t - n) * LN2;
    return isnan(x) ? x : scale_N(1.0 + (r + r * r * expm1_tail_N(r)), convert_I(n));
}
#endif

//:: N=f32 T=float U=uint LOG2E=1.44269504 LN2HIGH=0.693359375 LN2LOW=-2.12194440e-4 UNIT=12582912.0 SHIFT=23 BIAS=127
//:   WHOLE=12583038.0
//:: N=f64 T=double U=ulong LOG2E=1.4426950408889634 LN2HIGH=0.69314718036912382 LN2LOW=1.90821492927058782e-10
//:   UNIT=6755399441055744.0 SHIFT=52 BIAS=1023 WHOLE=6755399441056766.0

// 2^n (e^r - 1) + (2^n - 1) between the limits of expm1, halved until the last step: 2^n may be just out of range.
#ifdef WGSL
fn half_expm1_N(x: T) -> T {
    let n = round(x * LOG2E);
    let r = (x - n * LN2HIGH) - n * LN2LOW;
    let p = r + r * r * expm1_tail_N(r);
    // As in scale_N, with the bias of one less than n.
    let half = bitcast<T>(bitcast<U>(n + WHOLE) << SHIFT);
    return half * p + (half - 0.5);
}

fn bounded_expm1_N(x: T) -> T {
    return half_expm1_N(x) * 2.0;
}
#else
static T bounded_expm1_N(T x) {
    #pragma OPENCL FP_CONTRACT ON
    const T sum = x * LOG2E + UNIT;
    const T n = sum - UNIT;
    const T r = (x - n * LN2HIGH) - n * LN2LOW;
    const T p = r * r * expm1_tail_N(r) + r;
    const T halved = as_T((as_U(sum) << SHIFT) + ((U)(BIAS - 1) << SHIFT));
    return (halved * p + (halved - 0.5)) * 2.0;
}
#endif

//:: N=f32 T=float I=int U=uint LOW=-26.0 HIGH=88.8 ALMOST=10.0 SIGN=0x80000000u INFINITE=0x7f800000u
//:   LIMIT=0x41200000u
//:: N=f64 T=double I=long U=ulong LOW=-55.0 HIGH=709.9 ALMOST=22.0 SIGN=0x8000000000000000ul
//:   INFINITE=0x7ff0000000000000ul LIMIT=0x4036000000000000ul

static T expm1_N(T x) {
    // Zero keeps its sign, NaN itself, and subnormal numbers their last bit, which is lost where they are halved.
    return fabs(x) < 1.0e-30 || isnan(x) ? x : bounded_expm1_N(clamp(x, LOW, HIGH));
}

static T sinh_N(T x) {
    const T a = fabs(x);
    const T t = bounded_expm1_N(fmin(a, 1.0));
    const T h = scaled_exp_N(a, -1);
    const T magnitude = a < 1.0 ? 0.5 * (t + t / (t + 1.0)) : h - 0.25 / h;
    return a < 1.0e-30 || isnan(x) ? x : copysign(magnitude, x);
}

static T cosh_N(T x) {
    const T h = scaled_exp_N(fabs(x), -1);
    return isnan(x) ? x : h + 0.25 / h;
}

// Beyond ALMOST, or the bits of it, it is 1; NaN stays what it is.
#ifdef WGSL
// Half of e^2x - 1 is h, and h / (h + 1) the result.
fn tanh_N(x: T) -> T {
    let magnitude = bitcast<U>(x) & ~SIGN;
    let h = half_expm1_N(2.0 * bitcast<T>(min(magnitude, LIMIT)));
    return select(copysign_N(h / (h + 1.0), x), x, magnitude > INFINITE);
}
#else
static T tanh_N(T x) {
    const T a = fabs(x);
    const T t = bounded_expm1_N(2.0 * ((T)ALMOST < a ? (T)ALMOST : a));
    return copysign(t / (t + 2.0), x);
}

// Two numbers. The dialect's own pairs would be vectors, and those keep compilers from making longer ones.
struct Pair_N {
    T x;
    T y;
};
#endif

//:: N=f32 T=float I=int U=uint SHIFT=23 BIAS=127 MANTISSA=0x007fffffu ONE=0x3f800000u ROOT=0x3f3504f3u
//:   LIFT=25 LIFTED=33554432.0
//:: N=f64 T=double I=long U=ulong SHIFT=52 BIAS=1023 MANTISSA=0x000ffffffffffffful ONE=0x3ff0000000000000ul
//:   ROOT=0x3fe6a09e667f3bcdul LIFT=54 LIFTED=18014398509481984.0

// x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), as the pair of k and f; x positive and finite.
#ifdef WGSL
fn split_N(x: T) -> vec2<T> {
    // By integers, for devices may take a subnormal number for 0.
    let subnormal = bitcast<U>(x) <= MANTISSA;
    let lifted = select(bitcast<U>(x), (significand_N(x) & MANTISSA) + ONE, subnormal);
    let bits = lifted + (ONE - ROOT);
    let k = i32(bits >> SHIFT) - BIAS + select(0, binary_exponent_N(x), subnormal);
    return vec2<T>(T(k), bitcast<T>((bits & MANTISSA) + ROOT) - 1.0);
}
#else
static struct Pair_N split_N(T x) {
    const I subnormal = as_U(x) <= MANTISSA;
    const T lifted = subnormal ? x * LIFTED : x;
    const U bits = as_U(lifted) + (ONE - ROOT);
    const I k = convert_I(bits >> SHIFT) - BIAS - (subnormal & 1) * LIFT;
    return (struct Pair_N){convert_T(k), as_T((bits & MANTISSA) + ROOT) - 1.0};
}
#endif

//:: N=f32 T=float I=int U=uint SIGN=0x80000000u INFINITY=0x7f800000u
//:: N=f64 T=double I=long U=ulong SIGN=0x8000000000000000ul INFINITY=0x7ff0000000000000ul

// log(1 + f) for such an f. With s = f / (2 + f) it is 2 atanh(s), and 2 s = f - s f.
static T log_near_one_N(T f) {
    const T s = f / (2.0 + f);
    const T z = s * s;
    return f - s * (f - z * log_tail_N(z));
}

// The value of a logarithm where there is an ordinary one, and otherwise what logarithms of 0, infinity, negative
// numbers and NaN have in common.
static T log_or_special_N(T x, T value) {
    const U bits = as_U(x);
    const T of_zero = (bits & ~SIGN) == 0 ? -infinity_N() : nan_N();
    const T special = bits == INFINITY || isnan(x) ? x : of_zero;
    return bits - 1 < INFINITY - 1 ? value : special;
}

//:: N=f32 T=float I=int LN2HIGH=0.693359375 LN2LOW=-2.12194440e-4 LOG2E=1.44269504
//:: N=f64 T=double I=long LN2HIGH=0.69314718036912382 LN2LOW=1.90821492927058782e-10 LOG2E=1.4426950408889634

static T log_N(T x) {
    const struct Pair_N parts = split_N(x);
    return log_or_special_N(x, parts.x * LN2HIGH + (parts.x * LN2LOW + log_near_one_N(parts.y)));
}

static T log2_N(T x) {
    const struct Pair_N parts = split_N(x);
    return log_or_special_N(x, parts.x + log_near_one_N(parts.y) * LOG2E);
}

//:: N=f32 T=float I=int LOG10E=0.434294482 LOG10HIGH=0.30078125 LOG10LOW=2.48745664e-4
//:: N=f64 T=double I=long LOG10E=0.43429448190325183 LOG10HIGH=0.30102999554947019 LOG10LOW=1.14511008980218387e-10

static T log10_N(T x) {
    const struct Pair_N parts = split_N(x);
    return log_or_special_N(x, parts.x * LOG10HIGH + (parts.x * LOG10LOW + log_near_one_N(parts.y) * LOG10E));
}

//:: N=f32 T=float I=int LN2HIGH=0.693359375 LN2LOW=-2.12194440e-4 LN2=0.693147181 LARGE=1.0e18
//:: N=f64 T=double I=long LN2HIGH=0.69314718036912382 LN2LOW=1.90821492927058782e-10
//:   LN2=0.69314718055994531 LARGE=1.0e150

// Near zero x itself is the f, and nothing is rounded; elsewhere rounding 1 + x costs less than one unit.
static T log1p_N(T x) {
    const I near = x > -0.29 && x < 0.41;
    const struct Pair_N parts = split_N(1.0 + x);
    const T k = near ? (T)0.0 : parts.x;
    const T value = k * LN2HIGH + (k * LN2LOW + log_near_one_N(near ? x : parts.y));
    // Zero keeps its sign.
    return x == 0.0 ? x : near ? value : log_or_special_N(1.0 + x, value);
}

// log(a + sqrt(a^2 + 1)) without the cancellation; where the square would overflow it is log(2 a).
static T asinh_N(T x) {
    const T a = fabs(x);
    const T square = a * a;
    const T u = a < LARGE ? a + square / (1.0 + sqrt(1.0 + square)) : a;
    return copysign(log1p_N(u) + (a < LARGE ? (T)0.0 : (T)LN2), x);
}

static T acosh_N(T x) {
    const T t = x - 1.0;
    const T u = x < LARGE ? t + sqrt(2.0 * t + t * t) : x;
    return x < 1.0 ? nan_N() : log1p_N(u) + (x < LARGE ? (T)0.0 : (T)LN2);
}

static T atanh_N(T x) {
    const T a = fabs(x);
    return copysign(0.5 * log1p_N((2.0 * a) / (1.0 - a)), x);
}

//:: N=f32 T=float I=int U=uint UPPER=0xfffff000u
//:: N=f64 T=double I=long U=ulong UPPER=0xfffffffff8000000ul

// The upper half of the bits: the product of two such numbers is exact, and so is the difference to the whole.
static T upper_N(T x) {
    return as_T(as_U(x) & UPPER);
}

// f / (2 + f) as the sum of two numbers: the second is what the division by the upper half left over.
static struct Pair_N divided_N(T f) {
    const T s = f / (2.0 + f);
    const T high = upper_N(s);
    const T f_high = upper_N(f);
    const T rest = ((f - 2.0 * high) - high * f_high) - high * (f - f_high);
    return (struct Pair_N){high, rest / (2.0 + f)};
}

//:: N=f32 T=float I=int

// atanh(f / (2 + f)), half the logarithm of 1 + f, as the sum of two numbers, of which the first is an upper half.
static struct Pair_N half_log_N(T f) {
    const struct Pair_N s = divided_N(f);
    const T whole = s.x + s.y;
    const T z = whole * whole;
    return (struct Pair_N){s.x, s.y + whole * (z * atanh_tail_N(z))};
}

//:: N=f64 T=double I=long

// The same, where the cube of s is taken in two parts as well: what counts in the end are ten more bits.
static struct Pair_N half_log_N(T f) {
    const struct Pair_N s = divided_N(f);
    const T whole = s.x + s.y;
    const T z = whole * whole;
    const T square = s.x * s.x;
    const T square_high = upper_N(square);
    const T cube = s.x * square_high;
    const T cube_high = upper_N(cube);
    // A third, as 0.333...3 of 26 bits and the rest.
    const T third = cube_high * 0.33333332836627960205078125;
    const T cut_off = (cube - cube_high) + s.x * (square - square_high);
    const T finer = cut_off / 3.0 + cube_high * 4.96705373128255208e-9;
    const T high = upper_N(s.x + third);
    const T rest = finer + (square + s.x * s.y) * s.y + whole * (z * z * atanh_tail_N(z));
    const T low = ((s.x - high) + third) + (s.y + rest);
    return (struct Pair_N){high, low};
}

//:: N=f32 T=float I=int HIGH=129.0 LOW=-151.0 LIMIT=1.8446744e19 SPLIT=4097.0 TWOHIGH=2.884765625
//:   TWOLOW=6.244567779e-4 TWO=2.88539008 LN2=0.693147181
//:: N=f64 T=double I=long HIGH=1025.0 LOW=-1076.0 LIMIT=1.0e30 SPLIT=134217729.0 TWOHIGH=2.8853900432586669921875
//:   TWOLOW=3.85192598225323494e-8 TWO=2.8853900817779268 LN2=0.69314718055994531

// 2^(y log2(x)) for a positive x, with the logarithm as the sum of two numbers: an exponent of a thousand leaves ten
// bits less for the result, which one number would not have.
#ifdef WGSL
fn positive_power_N(x: T, y: T) -> T {
    let parts = split_N(x);
    let half_log = half_log_N(parts.y);
    let log_high = half_log.x * TWOHIGH;
    let log_low = half_log.x * TWOLOW + half_log.y * TWO;
    let high = upper_N(parts.x + (log_high + log_low));
    let low = ((parts.x - high) + log_high) + log_low;
    let power = clamp(y, -LIMIT, LIMIT);
    let power_high = upper_N(power);
    let exponent_high = power_high * high;
    let exponent_low = (power - power_high) * high + power * low;
    let exponent = exponent_high + exponent_low;
    let n = round(clamp(exponent, LOW, HIGH));
    let r = ((exponent_high - n) + exponent_low) * LN2;
    let value = scale_N(1.0 + (r + r * r * expm1_tail_N(r)), n);
    return select(select(value, infinity_N(), exponent > HIGH), 0.0, exponent < LOW);
}
#else
static T positive_power_N(T x, T y) {
    const struct Pair_N parts = split_N(x);
    const struct Pair_N half_log = half_log_N(parts.y);
    const T log_high = half_log.x * TWOHIGH;
    const T log_low = half_log.x * TWOLOW + half_log.y * TWO;
    const T high = upper_N(parts.x + (log_high + log_low));
    const T low = ((parts.x - high) + log_high) + log_low;
    const T power = clamp(y, -LIMIT, LIMIT);
    // The upper half by arithmetic this time: two equal operations would be made a pair, which is not made longer then.
    const T scaled = power * SPLIT;
    const T power_high = scaled - (scaled - power);
    const T exponent_high = power_high * high;
    const T exponent_low = (power - power_high) * high + power * low;
    const T exponent = exponent_high + exponent_low;
    const T n = nearest_N(clamp(exponent, LOW, HIGH));
    const T r = ((exponent_high - n) + exponent_low) * LN2;
    const T value = scale_N(1.0 + (r + r * r * expm1_tail_N(r)), convert_I(n));
    return exponent < LOW ? (T)0.0 : exponent > HIGH ? infinity_N() : value;
}
#endif

//:: N=f32 T=float I=int U=uint SIGN=0x80000000u INFINITY=0x7f800000u ONE=0x3f800000u LIMIT=4.0
//:: N=f64 T=double I=long U=ulong SIGN=0x8000000000000000ul INFINITY=0x7ff0000000000000ul ONE=0x3ff0000000000000ul
//:   LIMIT=6.0

// The special cases are those of C's pow.
#ifdef WGSL
fn power_N(x: T, y: T) -> T {
    let base = bitcast<U>(x) & ~SIGN;
    if (bitcast<U>(x) == ONE || (bitcast<U>(y) & ~SIGN) == 0) {
        return 1.0;
    }
    if (isnan_N(x) || isnan_N(y)) {
        return nan_N();
    }
    let whole = trunc(y) == y;
    let odd = whole && trunc(0.5 * y) != 0.5 * y;
    let negative = bitcast<U>(x) >= SIGN;
    var result = positive_power_N(bitcast<T>(base), y);
    if (base == 0 || base == INFINITY) {
        result = select(0.0, infinity_N(), (base == 0) == (bitcast<U>(y) >= SIGN));
    } else if (negative && !whole) {
        result = nan_N();
    } else if (base == ONE) {
        result = 1.0;
    }
    return select(result, -result, negative && odd);
}
#else
static T power_N(T x, T y) {
    const T base = fabs(x);
    const I whole = trunc(y) == y;
    const I odd = whole && trunc(0.5 * y) != 0.5 * y;
    T result = positive_power_N(base, y);
    result = base == 1.0 ? (T)1.0 : result;
    result = x < 0.0 && !whole ? nan_N() : result;
    result = base == 0.0 || isinf(x) ? ((base == 0.0) == (y < 0.0) ? infinity_N() : (T)0.0) : result;
    result = signbit(x) && odd ? -result : result;
    result = isnan(x) || isnan(y) ? nan_N() : result;
    return x == 1.0 || y == 0.0 ? (T)1.0 : result;
}
#endif

// Up to 1 by its series, then as 1 - e^(log erfc); beyond the limit it is 1.
static T erf_N(T x) {
    const T a = fabs(x);
    const T near = x + x * erf_tail_N(x * x);
    const T far = 1.0 - scaled_exp_N(log_erfc_N(clamp(a, 1.0, LIMIT) - 1.0), 0);
    return isnan(x) ? x : (a < 1.0 ? near : copysign(far, x));
}
