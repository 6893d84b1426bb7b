// Products with weights of split bfloat16 (split.h), by tile registers.
#include "packing.h"
#include "split.h"
#include "tiled.h"

#if defined(ARIL_TILES)
namespace aril {
namespace {

class TiledSplit {
public:
    TiledSplit(const uint8_t* data, int64_t k) : data_(data), units_((k + TILE_INPUTS - 1) / TILE_INPUTS) {}

    DecodedUnits once(int64_t panel) const { return DecodedUnits(SplitPanel(at(panel), units_), units_); }

    const bf16* cut(int64_t panel, Range units, bf16* room) const {
        SplitPanel(at(panel), units_).decode(room, units);
        return room;
    }

    AheadLines ahead(int64_t panel, Range units, int64_t step, int64_t steps) const {
        return share_of(at(panel + 1) + split_bytes(0), units, UNIT_BYTES, step, steps);
    }

private:
    const uint8_t* at(int64_t panel) const { return data_ + panel * split_bytes(units_); }

    const uint8_t* const data_;
    const int64_t units_;
};

int64_t units_of(int64_t k) { return (k + TILE_INPUTS - 1) / TILE_INPUTS; }

// Whether the numbers have so much in common.
bool split_panel(uint8_t* to, const bf16* w, int64_t rows, int64_t k, int64_t stride) {
    static thread_local Scratch scratch;
    const int64_t units = units_of(k), count = units * PAIRED_UNIT;
    auto* pairs = reinterpret_cast<bf16*>(scratch.get(count / 2));
    SplitWriter writer(to, units);
    const bf16 fill = writer.choose(w, rows, k, stride);
    pack_panel(pairs, w, rows, k, stride, fill);
    std::fill(pairs + (k + 1) / 2 * 2 * NR, pairs + count, fill);
    return writer.encode(pairs, units);
}

}  // namespace
}  // namespace aril
#endif

// Bytes of a panel of k inputs, or 0 where there are no tile registers.
extern "C" int64_t aril_split_bytes(int64_t k) {
#if defined(ARIL_TILES)
    return aril::split_bytes(aril::units_of(k));
#else
    return 0;
#endif
}

// Rows of a weight [n][k] into split panels; *fits becomes 0 where its numbers have too little in common.
extern "C" void aril_pack_split(uint8_t* out, int64_t* fits, const uint16_t* w, int64_t n, int64_t k, int64_t stride, int64_t cores) {
#if defined(ARIL_TILES)
    using namespace aril;
    const int64_t panels = (n + NR - 1) / NR, size = split_bytes(units_of(k));
    std::atomic<int64_t> refused{0};
    share(worth(cores, double(n) * k / 2), panels, [&](int64_t at) {
        if (refused) return;
        if (!split_panel(out + at * size, w + at * NR * stride, std::min<int64_t>(NR, n - at * NR), k, stride)) refused = 1;
    });
    *fits = !refused;
#endif
}

extern "C" void aril_linear_split(void* out, const uint16_t* x, const uint8_t* w, int64_t m, int64_t n, int64_t k, int64_t x_stride,
                                  int64_t out_dtype, int64_t parts, int64_t cores) {
#if defined(ARIL_TILES)
    using namespace aril;
    typed(out, out_dtype, [&](auto* to) { tiled_product(to, x, TiledSplit(w, k), Product{m, n, k, x_stride, parts}, cores); });
#endif
}

// Rows `ids` of a split weight, as they were: out[count][k].
extern "C" void aril_rows_of_split(uint16_t* out, const uint8_t* w, const int64_t* ids, int64_t count, int64_t k, int64_t cores) {
#if defined(ARIL_TILES)
    using namespace aril;
    const int64_t units = units_of(k);
    share_ranges(worth(cores, 4.0 * count * k), count, [&](Range some) {
        for (int64_t at = some.begin; at < some.end; at++)
            SplitPanel(w + ids[at] / NR * split_bytes(units), units).row(out + at * k, ids[at] % NR, k);
    });
#endif
}

ARIL_TAPED(aril_linear_split)
ARIL_TAPED(aril_rows_of_split)
