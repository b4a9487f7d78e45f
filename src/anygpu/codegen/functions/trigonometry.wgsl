// Trigonometric functions and their inverses; functions that end in _tail are among the polynomials.

//:

// Word i of the bits of 2/pi, which begin after one word of zeros; enough of them for the largest number. Adapters that
// run on a processor are many times faster with these than with a table in memory.
fn two_over_pi_u32(i: u32) -> u32 {
    var word = u32(0);
    word = select(word, 0xa2f9836eu, i > 0u);
    word = select(word, 0x4e441529u, i > 1u);
    word = select(word, 0xfc2757d1u, i > 2u);
    word = select(word, 0xf534ddc0u, i > 3u);
    word = select(word, 0xdb629599u, i > 4u);
    word = select(word, 0x3c439041u, i > 5u);
    word = select(word, 0xfe5163abu, i > 6u);
    return word;
}

// The same in longer words.
fn two_over_pi_u64(i: u32) -> u64 {
    var word = u64(0);
    word = select(word, 0xa2f9836e4e441529lu, i > 0u);
    word = select(word, 0xfc2757d1f534ddc0lu, i > 1u);
    word = select(word, 0xdb6295993c439041lu, i > 2u);
    word = select(word, 0xfe5163abdebbc561lu, i > 3u);
    word = select(word, 0xb7246e3a424dd2e0lu, i > 4u);
    word = select(word, 0x06492eea09d1921clu, i > 5u);
    word = select(word, 0xfe1deb1cb129a73elu, i > 6u);
    word = select(word, 0xe88235f52ebb4484lu, i > 7u);
    word = select(word, 0xe99c7026b45f7e41lu, i > 8u);
    word = select(word, 0x3991d639835339f4lu, i > 9u);
    word = select(word, 0x9c845f8bbdf9283blu, i > 10u);
    word = select(word, 0x1ff897ffde05980flu, i > 11u);
    word = select(word, 0xef2f118b5a0a6d1flu, i > 12u);
    word = select(word, 0x6d367ecf27cb09b7lu, i > 13u);
    word = select(word, 0x4f463f669e5fea2dlu, i > 14u);
    word = select(word, 0x7527bac7ebe5f17blu, i > 15u);
    word = select(word, 0x3d0739f78a5292ealu, i > 16u);
    word = select(word, 0x6bfb5fb11f8d5d08lu, i > 17u);
    word = select(word, 0x56033046fc7b6bablu, i > 18u);
    return word;
}

//: U=u32 HALF=16u LOWER=0xffffu
//: U=u64 HALF=32u LOWER=0xfffffffflu

// The upper word of a product of two words.
fn multiply_high_U(a: U, b: U) -> U {
    let low = (a & LOWER) * (b & LOWER);
    let middle = (a >> HALF) * (b & LOWER) + (low >> HALF);
    let other = (a & LOWER) * (b >> HALF) + (middle & LOWER);
    return (a >> HALF) * (b >> HALF) + (middle >> HALF) + (other >> HALF);
}

//: T=f32
//: T=f64

// x = quadrant * pi/2 + angle, where the angle is within pi/4.
struct Turn_T {
    angle: T,
    quadrant: i32,
}

//: T=f32 U=u32 WIDTH=32 SHIFT=23 MASK=31u LOG=5u SIGN=0x80000000u FARTHEST=134
//:   FRACTION=2.3283064365386963e-10 HALFPI=1.57079633
//: T=f64 U=u64 WIDTH=64 SHIFT=52 MASK=63u LOG=6u SIGN=0x8000000000000000lu FARTHEST=1033
//:   FRACTION=5.4210108624275222e-20 HALFPI=1.5707963267948966

// For large numbers (Payne and Hanek): x * 2/pi modulo 4 is the significand times three words of the bits of 2/pi, from
// the one on whose product with it is less than 4.
fn turn_of_large_T(x: T) -> Turn_T {
    let significand = significand_T(x);
    let start = u32(clamp(binary_exponent_T(x) - SHIFT - 2 + WIDTH, 0, FARTHEST));
    let word = start >> LOG;
    let distance = start & MASK;
    let a = two_over_pi_U(word);
    let b = two_over_pi_U(word + 1u);
    let c = two_over_pi_U(word + 2u);
    let d = two_over_pi_U(word + 3u);
    // Two shifts to the right, for one by a whole word is not defined.
    let first = (a << distance) | ((b >> 1u) >> (MASK - distance));
    let second = (b << distance) | ((c >> 1u) >> (MASK - distance));
    let third = (c << distance) | ((d >> 1u) >> (MASK - distance));
    let low = significand * third;
    let middle_low = significand * second;
    let middle = middle_low + multiply_high_U(significand, third);
    let carry = select(U(0), U(1), middle < middle_low);
    let high = significand * first + multiply_high_U(significand, second) + carry;
    // Two bits of quadrant, and a fraction of it that is taken from the nearer side.
    var fraction = (high << 2u) | (middle >> (MASK - 1u));
    var finer = (middle << 2u) | (low >> (MASK - 1u));
    let back = fraction >= SIGN;
    let quadrant = i32(high >> (MASK - 1u)) + select(0, 1, back);
    if (back) {
        fraction = ~fraction;
        finer = ~finer;
    }
    let angle = ((T(fraction) + T(finer) * FRACTION) * FRACTION) * HALFPI;
    return Turn_T(select(angle, -angle, back != (x < 0.0)), select(quadrant, -quadrant, x < 0.0));
}

//: T=f32 SMALL=20000.0 TWOBYPI=0.636619772 FIRST=1.5703125 SECOND=4.83512878417969e-4
//:   THIRD=3.13855707645416e-7 FOURTH=6.07710062827671e-11
//: T=f64 SMALL=1647099.0 TWOBYPI=0.63661977236758134 FIRST=1.57079632673412561416626
//:   SECOND=6.077100506303965976595549e-11 THIRD=2.022266248795950631541144e-21 FOURTH=0.0

// By subtraction of multiples of pi/2, in parts so short that the products with n are exact (Cody and Waite).
fn turn_T(x: T) -> Turn_T {
    let n = round(x * TWOBYPI);
    if (abs(x) > SMALL) {
        return turn_of_large_T(x);
    }
    return Turn_T((((x - n * FIRST) - n * SECOND) - n * THIRD) - n * FOURTH, i32(n));
}

//: T=f32 HALFPI=1.57079633 PI=3.14159265 QUARTERPI=0.785398163
//: T=f64 HALFPI=1.5707963267948966 PI=3.1415926535897932 QUARTERPI=0.78539816339744831

fn sin_of_angle_T(r: T) -> T {
    let z = r * r;
    return r + r * (z * sin_tail_T(z));
}

fn cos_of_angle_T(r: T) -> T {
    let z = r * r;
    return 1.0 - (0.5 * z - z * z * cos_tail_T(z));
}

fn sin_T(x: T) -> T {
    let turn = turn_T(x);
    let value = select(sin_of_angle_T(turn.angle), cos_of_angle_T(turn.angle), (turn.quadrant & 1) == 1);
    let signed = select(value, -value, (turn.quadrant & 2) == 2);
    return select(select(signed, x, x == 0.0), nan_T(), !isfinite_T(x));
}

fn cos_T(x: T) -> T {
    let turn = turn_T(x);
    let value = select(cos_of_angle_T(turn.angle), sin_of_angle_T(turn.angle), (turn.quadrant & 1) == 1);
    let signed = select(value, -value, ((turn.quadrant + 1) & 2) == 2);
    return select(signed, nan_T(), !isfinite_T(x));
}

fn tan_T(x: T) -> T {
    let turn = turn_T(x);
    let s = sin_of_angle_T(turn.angle);
    let c = cos_of_angle_T(turn.angle);
    let odd = (turn.quadrant & 1) == 1;
    let value = select(s, -c, odd) / select(c, s, odd);
    return select(select(value, x, x == 0.0), nan_T(), !isfinite_T(x));
}

// Beyond 1/2 by half the angle: asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2)).
fn asin_T(x: T) -> T {
    let a = abs(x);
    let far = a > 0.5;
    let z = select(x * x, 0.5 * (1.0 - a), far);
    let s = select(a, sqrt(z), far);
    let p = s + s * (z * asin_tail_T(z));
    return select(nan_T(), copysign_T(select(p, HALFPI - 2.0 * p, far), x), a <= 1.0);
}

fn acos_T(x: T) -> T {
    let a = abs(x);
    let far = a > 0.5;
    let z = select(x * x, 0.5 * (1.0 - a), far);
    let s = select(a, sqrt(z), far);
    let p = s + s * (z * asin_tail_T(z));
    let value = select(HALFPI - copysign_T(p, x), select(2.0 * p, PI - 2.0 * p, x < 0.0), far);
    return select(nan_T(), value, a <= 1.0);
}

// The angle whose tangent is low / high, for 0 <= low <= high: with one division, also beyond tan(pi/8), where it is
// pi/4 less the angle of (high - low) / (high + low).
fn slope_angle_T(low: T, high: T) -> T {
    let steep = low > 0.4142 * high;
    let t = select(low, low - high, steep) / select(high, low + high, steep);
    let z = t * t;
    return select(T(0.0), T(QUARTERPI), steep) + (t + t * (z * atan_tail_T(z)));
}

fn atan_T(x: T) -> T {
    let a = abs(x);
    let angle = slope_angle_T(min(a, 1.0), max(a, 1.0));
    return select(copysign_T(select(angle, HALFPI - angle, a > 1.0), x), x, isnan_T(x));
}

//: T=f32 U=u32 INFINITY=0x7f800000u HALFPI=1.57079633 PI=3.14159265 LARGE=1.0e30 SMALL=1.0e-30 UP=1.0e8 DOWN=1.0e-8
//: T=f64 U=u64 INFINITY=0x7ff0000000000000lu HALFPI=1.5707963267948966 PI=3.1415926535897932 LARGE=1.0e300
//:   SMALL=1.0e-290 UP=1.0e30 DOWN=1.0e-30

fn atan2_T(y: T, x: T) -> T {
    let a = abs(x);
    let b = abs(y);
    var low = min(a, b);
    var high = max(a, b);
    // Neither may the sum overflow nor the smaller one vanish; two infinities are as good as two ones, 0 / 0 as 0 / 1.
    let factor = select(select(T(1.0), T(UP), high < SMALL), T(DOWN), high > LARGE);
    let infinite = bitcast<U>(low) == INFINITY;
    low = select(low * factor, 1.0, infinite);
    high = select(high * factor, 1.0, infinite || high == 0.0);
    let first = slope_angle_T(low, high);
    let angle = select(first, HALFPI - first, b > a);
    let turned = select(angle, PI - angle, signbit_T(x));
    return select(copysign_T(turned, y), nan_T(), isnan_T(x) || isnan_T(y));
}

//:

// The dialect's own functions, as far as they are measured to be good; beyond, neighbours are about a radian apart, and
// devices were seen to return anything.
fn moderate_sin_f32(x: f32) -> f32 {
    if (abs(x) > 1.0e5) {
        return sin_f32(x);
    }
    return sin(x);
}

fn moderate_cos_f32(x: f32) -> f32 {
    if (abs(x) > 1.0e5) {
        return cos_f32(x);
    }
    return cos(x);
}

fn moderate_tan_f32(x: f32) -> f32 {
    if (abs(x) > 1.0e5) {
        return tan_f32(x);
    }
    return tan(x);
}
