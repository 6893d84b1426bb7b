// Tokens from logits: the most likely of each row, draws from truncated distributions, and masks. Nothing is sorted but the tokens
// that can be drawn: those within a bound of the highest logit, which is widened until they are enough.
#include <numeric>
#include <vector>

#include "common.h"

namespace aril {
namespace {

constexpr int64_t BLOCK = 1024;       // weights whose sum is compared before the one that is drawn is looked for
constexpr float BOUNDS[] = {2.5e-3f, 2.5e-6f, 0};  // least weights of the tokens that are sorted, the highest being 1
constexpr double SCAN = 2, EXP = 16;  // operations for each vector of logits

ARIL_INLINE bool any(vi lanes) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes);
#elif defined(__AVX2__)
    return _mm256_movemask_epi8((__m256i)lanes);
#else
    int32_t set = 0;
    for (int i = 0; i < W; i++) set |= lanes[i];
    return set;
#endif
}

struct Peak {
    float value;
    int64_t at;
};

// The first place of the highest value, or of the first NaN.
Peak peak_of(const float* x, int64_t count) {
    vf tops[4] = {splat(-INFINITY), splat(-INFINITY), splat(-INFINITY), splat(-INFINITY)}, odd = {};
    int64_t i = 0;
    for (; i + 4 * W <= count; i += 4 * W)
        for (int j = 0; j < 4; j++) {
            const vf v = load(x + i + j * W);
            tops[j] = max(v, tops[j]);
            odd = v == v ? odd : v;
        }
    float lanes[W], strange[W], top = -INFINITY;
    store(lanes, max(max(tops[0], tops[1]), max(tops[2], tops[3])));
    store(strange, odd);
    bool sound = true;
    for (int j = 0; j < W; j++) top = std::max(top, lanes[j]), sound &= strange[j] == strange[j];
    for (; i < count; i++) top = std::max(top, x[i]), sound &= x[i] == x[i];
    const auto found = [&](float value) { return sound ? value == top : value != value; };
    int64_t at = 0;
    while (sound && at + W <= count && !any(load(x + at) == splat(top))) at += W;
    while (at + 1 < count && !found(x[at])) at++;
    return {sound ? top : NAN, at};
}

struct Asked {  // a row of the table
    float temperature, top_k, top_p, min_p, uniform;
};

struct Chance {
    float weight;
    int32_t token;
};

// One row as weights exp((x - highest) / temperature), those under min_p zero.
class Row {
public:
    Row(const float* x, int64_t vocab, const Asked& asked) : vocab_(vocab), asked_(asked) {
        static thread_local Scratch scratch;
        weights_ = scratch.get(vocab + (vocab + BLOCK - 1) / BLOCK);
        sums_ = weights_ + vocab;
        const float peak = peak_of(x, vocab).value / asked.temperature;
        for (int64_t i = 0; i < vocab; i += BLOCK) all_ += sums_[i / BLOCK] = weigh(x, i, std::min(i + BLOCK, vocab), peak);
    }

    int64_t draw() const { return asked_.top_k < float(vocab_) || asked_.top_p < 1 ? from_ranked() : from_all(); }

private:
    float weigh(const float* x, int64_t from, int64_t to, float peak) {
        const vf temperature = splat(asked_.temperature), least = splat(asked_.min_p);
        const auto weight = [&](vf v) ARIL_INLINE_LAMBDA {
            const vf e = exp(v / temperature - peak);
            return e < least ? vf{} : e;
        };
        vf sums = {};
        for (; from + W <= to; from += W) {
            const vf some = weight(load(x + from));
            store(weights_ + from, some);
            sums += some;
        }
        float rest[W];
        for (int i = 0; i < W; i++) rest[i] = from + i < to ? x[from + i] : -INFINITY;
        store(rest, weight(load(rest)));
        std::copy(rest, rest + (to - from), weights_ + from);
        return sum(sums + load(rest));
    }

    // In the order of the vocabulary. Rounding must not reach past the last token that is possible.
    int64_t from_all() const {
        double left = asked_.uniform * all_;
        int64_t block = 0, last = (vocab_ - 1) / BLOCK;
        while (sums_[last] == 0) last--;
        for (; block < last && sums_[block] <= left; block++) left -= sums_[block];
        int64_t possible = 0;
        for (int64_t i = block * BLOCK; i < std::min(vocab_, (block + 1) * BLOCK); i++) {
            if (weights_[i] == 0) continue;
            if (weights_[i] > left) return i;
            left -= weights_[possible = i];
        }
        return possible;
    }

    // By rank: min_p, then top_k, then top_p of what is left.
    int64_t from_ranked() const {
        static thread_local std::vector<Chance> likely;
        const int64_t most = int64_t(std::min(asked_.top_k, float(vocab_)));
        for (const float bound : BOUNDS) {
            const double held = gather(likely, bound);
            if (most < vocab_ ? int64_t(likely.size()) >= most : held >= asked_.top_p * all_) break;
        }
        rank(likely, most);
        double total = all_;
        if (most < vocab_) total = std::accumulate(likely.begin(), likely.end(), 0.0, [](double sum, Chance c) { return sum + c.weight; });
        const double limit = asked_.top_p * total;
        double nucleus = 0;
        size_t count = 0;
        for (; count < likely.size() && (count == 0 || nucleus < limit); count++) nucleus += likely[count].weight;
        double left = asked_.uniform * nucleus;
        size_t at = 0;
        for (; at + 1 < count && likely[at].weight <= left; at++) left -= likely[at].weight;
        return likely[at].token;
    }

    // The tokens of at least this weight; returns the sum of their weights.
    double gather(std::vector<Chance>& likely, float bound) const {
        likely.clear();
        double sum = 0;
        const auto take = [&](int64_t i) {
            if (weights_[i] < bound || weights_[i] == 0) return;
            likely.push_back({weights_[i], int32_t(i)});
            sum += weights_[i];
        };
        int64_t i = 0;
        for (; i + W <= vocab_; i += W)
            if (any(load(weights_ + i) >= splat(bound)))
                for (int j = 0; j < W; j++) take(i + j);
        for (; i < vocab_; i++) take(i);
        return sum;
    }

    // The `most` likely ones in order; of equal ones the first token is the first.
    static void rank(std::vector<Chance>& likely, int64_t most) {
        const auto before = [](Chance a, Chance b) { return a.weight > b.weight || (a.weight == b.weight && a.token < b.token); };
        if (most < int64_t(likely.size())) {
            std::nth_element(likely.begin(), likely.begin() + most, likely.end(), before);
            likely.resize(most);
        }
        std::sort(likely.begin(), likely.end(), before);
    }

    const int64_t vocab_;
    const Asked& asked_;
    float *weights_ = nullptr, *sums_ = nullptr;
    double all_ = 0;
};

}  // namespace
}  // namespace aril

extern "C" void aril_greatest(void* values, void* places, const void* x, int64_t rows, int64_t count, int64_t stride, int64_t cores) {
    using namespace aril;
    share(worth(cores, SCAN * double(rows * count) / W), rows, [&](int64_t row) {
        const Peak peak = peak_of(static_cast<const float*>(x) + row * stride, count);
        static_cast<float*>(values)[row] = peak.value, static_cast<int64_t*>(places)[row] = peak.at;
    });
}

// table: [rows, 5] float32 as Asked; which: the row of x that each of them draws from.
extern "C" void aril_draw(void* tokens, const void* x, const void* which, const void* table, int64_t rows, int64_t count,
                          int64_t stride, int64_t cores) {
    using namespace aril;
    share(worth(cores, EXP * double(rows * count) / W), rows, [&](int64_t i) {
        const float* row = static_cast<const float*>(x) + static_cast<const int64_t*>(which)[i] * stride;
        static_cast<int64_t*>(tokens)[i] = Row(row, count, static_cast<const Asked*>(table)[i]).draw();
    });
}

// which: the row of x that each row of bits is for; token t is bit t % 32 of word t / 32, and allowed where that is set.
extern "C" void aril_mask(void* x, const void* which, const void* bits, int64_t rows, int64_t count, int64_t stride, int64_t words,
                          int64_t cores) {
    using namespace aril;
    share(worth(cores, SCAN * double(rows * count) / W), rows, [&](int64_t i) {
        float* row = static_cast<float*>(x) + static_cast<const int64_t*>(which)[i] * stride;
        const uint32_t* allowed = static_cast<const uint32_t*>(bits) + i * words;
        for (int64_t at = 0; at < count; at += 32) {
            const uint32_t word = allowed[at / 32];
            if (word == ~0u) continue;
            const int64_t end = std::min<int64_t>(count - at, 32);
            for (int64_t j = 0; j < end; j++) row[at + j] = word >> j & 1 ? row[at + j] : -INFINITY;
        }
    });
}

ARIL_TAPED(aril_greatest)
ARIL_TAPED(aril_draw)
ARIL_TAPED(aril_mask)
