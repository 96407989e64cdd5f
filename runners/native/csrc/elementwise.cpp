#include "elementwise.h"

#include <cmath>

namespace hr {

namespace {

floats sigmoid(floats x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

floats silu(floats x) { return mul(x, sigmoid(x)); }

// The tanh approximation: 0.5 x (1 + tanh(u)) = x * sigmoid(2u).
floats gelu(floats x) {
    const floats cube = mul(mul(x, x), x);
    const floats u = mul(fmadd(set1(0.044715f), cube, x), set1(0.7978845608f));
    return mul(x, sigmoid(add(u, u)));
}

}  // namespace

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    floats squares[4] = {zero(), zero(), zero(), zero()};
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const floats v = load(x + i + j * LANES);
            squares[j] = fmadd(v, v, squares[j]);
        }
    }
    float total = sum(add(add(squares[0], squares[1]), add(squares[2], squares[3])));
    for (; i < n; ++i) total += x[i] * x[i];
    const float inverse = 1.0f / std::sqrt(total / static_cast<float>(n) + eps);
    for (i = 0; i + LANES <= n; i += LANES) store(out + i, mul(mul(load(x + i), set1(inverse)), load(weight + i)));
    for (; i < n; ++i) out[i] = x[i] * inverse * weight[i];
}

void add_to(float* x, const float* y, int n) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) store(x + i, add(load(x + i), load(y + i)));
    for (; i < n; ++i) x[i] += y[i];
}

void apply_gate(Gate kind, float* gate, const float* up, int n) {
    if (kind == Gate::SILU) {
        for (int i = 0; i < n; i += LANES) store(gate + i, mul(silu(load(gate + i)), load(up + i)));
    } else {
        for (int i = 0; i < n; i += LANES) store(gate + i, mul(gelu(load(gate + i)), load(up + i)));
    }
}

void rotary_angles(int position, const float* frequencies, int count, float scale, float* cosines, float* sines) {
    for (int i = 0; i < count; ++i) {
        const float angle = static_cast<float>(position) * frequencies[i];
        cosines[i] = std::cos(angle) * scale;
        sines[i] = std::sin(angle) * scale;
    }
}

void rotate(float* x, const float* cosines, const float* sines, int count) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) {
        const floats a = load(x + i), b = load(x + i + count), c = load(cosines + i), s = load(sines + i);
        store(x + i, fnmadd(b, s, mul(a, c)));
        store(x + i + count, fmadd(a, s, mul(b, c)));
    }
    for (; i < count; ++i) {
        const float a = x[i], b = x[i + count];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + count] = b * cosines[i] + a * sines[i];
    }
}

}  // namespace hr
