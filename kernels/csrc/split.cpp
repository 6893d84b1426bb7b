// Products with weights of split bfloat16 (split.h).
#include "split.h"
#include "tiled.h"

#if defined(ARIL_SPLIT)
namespace aril {
namespace {

class SplitWeight {
public:
    SplitWeight(const uint8_t* data, int64_t k) : data_(data), units_(split_units(k)), bytes_(split_bytes(units_)) {}

    int64_t units() const { return units_; }
    SplitPanel panel(int64_t at) const { return SplitPanel(data_ + at * bytes_, units_); }

private:
    const uint8_t* const data_;
    const int64_t units_, bytes_;
};

#if defined(ARIL_TILES)
static_assert(SPLIT_UNIT == PAIRED_UNIT && SPLIT_INPUTS == TILE_INPUTS, "units are those of the tile registers");
constexpr int64_t NEAR_SPLIT = 8192;  // bytes that memory runs ahead when a panel passes only once

struct TiledSplit {
    const SplitWeight weight;

    DecodedUnits<NEAR_SPLIT> once(int64_t panel) const { return {weight.panel(panel), weight.units()}; }

    const bf16* cut(int64_t panel, Range units, bf16* room) const {
        weight.panel(panel).decode(room, units);
        return room;
    }

    AheadLines ahead(int64_t panel, Range units, int64_t step, int64_t steps) const {
        return share_of(weight.panel(panel + 1).unit(0), units, UNIT_BYTES, step, steps);
    }
};

template <class Out>
void split_product(Out* out, const bf16* x, const SplitWeight& w, const Product& p, int64_t cores) {
    tiled_product(out, x, TiledSplit{w}, p, cores);
}

#else

// For product.h; its blocks of k are counted in units.
struct Split {
#if defined(__AVX512BF16__)
    using In = bf16;
#else
    using In = float;
#endif
    static constexpr int64_t UNITS = 10;  // of a panel in L1 beside the rows of x, decoded
    // Units that memory runs ahead, and where two panels pass at once (both cores of Zen 3, one row times SmolLM2's layers: 13.0 ms,
    // and 13.9 three units ahead of either).
    static constexpr int64_t NEAR_UNITS = 3, NEAR_OF_TWO = 2;

    const SplitWeight weight;
    const int64_t k;

    int64_t cuts(int64_t rows) const { return rows <= MR ? 1 : (weight.units() + UNITS - 1) / UNITS; }

    Range block(int64_t cut, int64_t cuts) const { return Range(weight.units(), cut, cuts); }

    void multiply(int64_t rows, float* sums, int64_t stride, const In* x, int64_t x_stride, Range panels, Range units, bool onto) const {
        int64_t at = panels.begin;
        if (rows > MR) {
            alignas(64) bf16 room[UNITS * SPLIT_UNIT];
            for (; at < panels.end; at++, sums += NR) {
                weight.panel(at).decode(room, units);
                meet(rows, sums, stride, x, x_stride, room, units, onto, unit_of(at + 1, units.begin));
            }
            return;
        }
#if !defined(__AVX512BF16__)
        for (; rows == 1 && at + 2 <= panels.end; at += 2, sums += 2 * NR) two(sums, x, at);
#endif
        for (; at < panels.end; at++, sums += NR) once(rows, sums, stride, x, x_stride, at);
    }

private:
    int64_t inputs(Range units) const { return std::min(k, units.end * SPLIT_INPUTS) - units.begin * SPLIT_INPUTS; }

    // Where a unit of a panel lies or, past its end, one of the panel `step` further.
    const uint8_t* unit_of(int64_t panel, int64_t unit, int64_t step = 1) const {
        return unit < weight.units() ? weight.panel(panel).unit(unit) : weight.panel(panel + step).unit(unit - weight.units());
    }

    // Rows times some decoded units; what lies at `ahead` is brought meanwhile, a unit for each.
    ARIL_INLINE void meet(int64_t rows, float* sums, int64_t stride, const In* x, int64_t x_stride, const bf16* w, Range units, bool onto,
                          const uint8_t* ahead) const {
        x += units.begin * SPLIT_INPUTS;
#if defined(__AVX512BF16__)
        panel_dots(rows, sums, stride, x, x_stride, w, (inputs(units) + 1) / 2, onto, Ahead{reinterpret_cast<const char*>(ahead), 2 * STEP});
#else
        panel_product(rows, sums, stride, x, x_stride, w, inputs(units), onto, Ahead{reinterpret_cast<const char*>(ahead), STEP},
                      bringer.take(inputs(units) * tiles_of(rows)));
#endif
    }

    void once(int64_t rows, float* sums, int64_t stride, const In* x, int64_t x_stride, int64_t panel) const {
        weight.panel(panel + 1).fetch_header();
        DecodedUnits<0> decoded(weight.panel(panel), weight.units());
        for (int64_t i = 0; i < weight.units(); i++)
            meet(rows, sums, stride, x, x_stride, decoded.unit(i), Range(i, i + 1), i > 0, unit_of(panel, i + NEAR_UNITS));
    }

#if !defined(__AVX512BF16__)
    void two(float* sums, const float* x, int64_t panel) const {
        for (int i = 2; i < 4; i++) weight.panel(panel + i).fetch_header();
        DecodedUnits<0> first(weight.panel(panel), weight.units()), second(weight.panel(panel + 1), weight.units());
        const auto ahead = [&](int64_t panel, int64_t i) {
            return Ahead{reinterpret_cast<const char*>(unit_of(panel, i + NEAR_OF_TWO, 2)), STEP};
        };
        for (int64_t i = 0; i < weight.units(); i++) {
            const Ahead both[2] = {ahead(panel, i), ahead(panel + 1, i)};
            tile_of_two(sums, x + i * SPLIT_INPUTS, first.unit(i), second.unit(i), inputs(Range(i, i + 1)), i > 0, both);
        }
    }
#endif

    static constexpr int64_t STEP = UNIT_BYTES / SPLIT_INPUTS;
};

template <class Out, class X>
void split_product(Out* out, const X* x, const SplitWeight& w, const Product& p, int64_t cores) {
    product(out, x, nullptr, Split{w, p.k}, p, cores);
}
#endif

// Rows of a weight in the order of a panel's units, filled up; block by block, so that what is written stays in L1 until all rows
// have given their share.
void order_panel(bf16* to, const bf16* w, int64_t rows, int64_t k, int64_t stride, bf16 fill) {
    for (int64_t begin = 0; begin < k; begin += SPLIT_INPUTS, to += SPLIT_UNIT) {
        const int64_t count = std::min(SPLIT_INPUTS, k - begin);
        if (count < SPLIT_INPUTS || rows < NR) std::fill(to, to + SPLIT_UNIT, fill);
        for (int64_t row = 0; row < rows; row++) {
            bf16* column = to + split_place(0, row);
            for (int64_t i = 0; i < count; i++) column[split_place(i, 0)] = w[row * stride + begin + i];
        }
    }
}

// Whether the numbers have so much in common.
bool split_panel(uint8_t* to, const bf16* w, int64_t rows, int64_t k, int64_t stride) {
    static thread_local Scratch scratch;
    const int64_t units = split_units(k);
    auto* numbers = reinterpret_cast<bf16*>(scratch.get(units * SPLIT_UNIT / 2));
    SplitWriter writer(to, units);
    order_panel(numbers, w, rows, k, stride, writer.choose(w, rows, k, stride));
    return writer.encode(numbers, units);
}

}  // namespace
}  // namespace aril
#endif

// Bytes of a panel of k inputs, or 0 where none are split.
extern "C" int64_t aril_split_bytes(int64_t k) {
#if defined(ARIL_SPLIT)
    return aril::split_bytes(aril::split_units(k));
#else
    return 0;
#endif
}

// Rows of a weight [n][k] into split panels; *fits becomes 0 where its numbers have too little in common.
extern "C" void aril_pack_split(uint8_t* out, int64_t* fits, const uint16_t* w, int64_t n, int64_t k, int64_t stride, int64_t cores) {
#if defined(ARIL_SPLIT)
    using namespace aril;
    const int64_t panels = (n + NR - 1) / NR, size = split_bytes(split_units(k));
    std::atomic<int64_t> refused{0};
    share(worth(cores, double(n) * k / 2), panels, [&](int64_t at) {
        if (refused) return;
        if (!split_panel(out + at * size, w + at * NR * stride, std::min<int64_t>(NR, n - at * NR), k, stride)) refused = 1;
    });
    *fits = !refused;
#endif
}

// x is bfloat16 where pairs are multiplied.
extern "C" void aril_linear_split(void* out, const void* x, const uint8_t* w, int64_t m, int64_t n, int64_t k, int64_t x_stride,
                                  int64_t x_dtype, int64_t out_dtype, int64_t parts, int64_t cores) {
#if defined(ARIL_SPLIT)
    using namespace aril;
    const Product p{m, n, k, x_stride, parts};
    typed(out, out_dtype, [&](auto* to) {
        if (x_dtype == BF16) return split_product(to, static_cast<const bf16*>(x), SplitWeight(w, k), p, cores);
#if !defined(__AVX512BF16__)
        split_product(to, static_cast<const float*>(x), SplitWeight(w, k), p, cores);
#endif
    });
#endif
}

// Rows `ids` of a split weight, as they were: out[count][k].
extern "C" void aril_rows_of_split(uint16_t* out, const uint8_t* w, const int64_t* ids, int64_t count, int64_t k, int64_t cores) {
#if defined(ARIL_SPLIT)
    using namespace aril;
    const SplitWeight weight(w, k);
    share_ranges(worth(cores, 4.0 * count * k), count, [&](Range some) {
        for (int64_t at = some.begin; at < some.end; at++) weight.panel(ids[at] / NR).row(out + at * k, ids[at] % NR, k);
    });
#endif
}

ARIL_TAPED(aril_linear_split)
ARIL_TAPED(aril_rows_of_split)
