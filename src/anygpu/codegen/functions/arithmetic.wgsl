// Floating-point arithmetic beyond the operators.

//: T=f32 U=u32 SIGN=0x80000000u INFINITY=0x7f800000u ONE=0x3f800000u SHIFT=23 ROOM=8
//: T=f64 U=u64 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu ONE=0x3ff0000000000000lu SHIFT=52 ROOM=11

fn reciprocal_T(x: T) -> T {
    return 1.0 / x;
}

fn sign_T(x: T) -> T {
    let bits = bitcast<U>(x);
    let magnitude = bits & ~SIGN;
    let one = select((bits & SIGN) | ONE, 0, magnitude == 0);
    return bitcast<T>(select(one, bits, magnitude > INFINITY));
}

// The dialect leaves open what min and max make of NaN, and of two zeros; here NaN wins, and the second of two equals.
fn minimum_T(x: T, y: T) -> T {
    return select(y, x, x < y || (bitcast<U>(x) & ~SIGN) > INFINITY);
}

fn maximum_T(x: T, y: T) -> T {
    return select(y, x, x > y || (bitcast<U>(x) & ~SIGN) > INFINITY);
}

// The dialect's root, for what it promises something; zeros, infinity and NaN are their own.
fn sqrt_T(x: T) -> T {
    let bits = bitcast<U>(x);
    if ((bits & ~SIGN) == 0 || (bits & ~SIGN) > INFINITY || bits == INFINITY) {
        return x;
    }
    return select(sqrt(x), nan_T(), bits >= SIGN);
}

// Exact, as fmod must be: long division of the significands, ROOM bits at a time, which is all of it in one step
// when the operands are within 2^ROOM of each other.
fn fmod_T(x: T, y: T) -> T {
    let dividend = bitcast<U>(x) & ~SIGN;
    let divisor = bitcast<U>(y) & ~SIGN;
    if (divisor == 0 || divisor > INFINITY || dividend >= INFINITY) {
        return nan_T();
    }
    if (dividend < divisor) {
        return x;
    }
    let below = significand_T(y);
    let exponent = binary_exponent_T(y);
    var rest = significand_T(x) % below;
    var left = binary_exponent_T(x) - exponent;
    while (left > 0) {
        let step = min(left, ROOM);
        rest = (rest << u32(step)) % below;
        left -= step;
    }
    return copysign_T(ldexp_T(T(rest), exponent - SHIFT), x);
}

// As in NumPy: the sign of the divisor, and of its zero.
fn remainder_T(x: T, y: T) -> T {
    let rest = fmod_T(x, y);
    if (rest == 0.0) {
        return copysign_T(rest, y);
    }
    return select(rest, rest + y, (rest < 0.0) != (y < 0.0));
}

// As in NumPy: from the exact rest, so that the quotient is a whole number but for rounding.
fn floor_divide_T(x: T, y: T) -> T {
    if (y == 0.0) {
        return x / y;
    }
    let rest = fmod_T(x, y);
    let below = rest != 0.0 && (rest < 0.0) != (y < 0.0);
    let quotient = (x - rest) / y - select(T(0.0), T(1.0), below);
    if (quotient == 0.0) {
        return copysign_T(quotient, x / y);
    }
    let floored = floor(quotient);
    return select(floored, floored + 1.0, quotient - floored > 0.5);
}

//: T=f32 U=u32 SIGN=0x80000000u INFINITY=0x7f800000u LARGE=126 ROUNDS=1
//: T=f64 U=u64 SIGN=0x8000000000000000lu INFINITY=0x7ff0000000000000lu LARGE=1022 ROUNDS=2

// Both are scaled by the same power of two, so that no square leaves the range.
fn hypot_T(x: T, y: T) -> T {
    let a = bitcast<U>(x) & ~SIGN;
    let b = bitcast<U>(y) & ~SIGN;
    if (a == INFINITY || b == INFINITY) {
        return infinity_T();
    }
    if (a == 0 || b == 0) {
        return bitcast<T>(a | b);
    }
    let exponent = clamp(binary_exponent_T(bitcast<T>(max(a, b))), -LARGE, LARGE);
    let scale = power_of_two_T(-exponent);
    let p = bitcast<T>(a) * scale;
    let q = bitcast<T>(b) * scale;
    return sqrt(p * p + q * q) * power_of_two_T(exponent);
}

// x = value * 8^third with value in [1, 8); a parabola gives 6 bits of its root, each of Halley's steps three times
// as many as there were, and a last step of Newton's takes back what rounding did.
fn cbrt_T(x: T) -> T {
    let bits = bitcast<U>(x) & ~SIGN;
    if (bits == 0 || bits >= INFINITY) {
        return x;
    }
    let exponent = binary_exponent_T(x);
    let third = (exponent + 3000) / 3 - 1000;
    let value = abs(mantissa_T(x)) * power_of_two_T(exponent - 3 * third + 1);
    var root = 0.76293652 + value * (0.26789327 - value * 0.01466153);
    for (var round = 0; round < ROUNDS; round += 1) {
        let cube = root * root * root;
        root = root * ((cube + 2.0 * value) / (2.0 * cube + value));
    }
    let square = root * root;
    root = root - (square * root - value) / (3.0 * square);
    return copysign_T(root * power_of_two_T(third), x);
}
