// The adapters' products of bfloat16 in tile registers (amx.h). Of the two sides of the first product, x is turned where a piece
// has few tokens, A where it has many; the second is done by vectors for very few.
//
// What comes of the first product meets the second as bfloat16, as in adapters_pairs.h.
#pragma once

#include "adapters.h"
#include "tile_chains.h"
#include "tile_turned.h"

#if defined(ARIL_TILES)
namespace aril {

constexpr int64_t FAR_LINES = 96;  // that memory runs ahead. One core, 16 adapters of rank 64, a token each: 47.7 ms; 48: 49.7

// A matrix that is read 32 columns after the other, from some of them on.
class Columnwise {
public:
    Columnwise(const Matrix<bf16>& m, int64_t first, int64_t last)
        : at_(reinterpret_cast<const char*>(m.at) + first * TILE_BYTES),
          stride_(m.width * 2),
          rows_(m.rows),
          left_(std::min(last, (m.width + TILE_INPUTS - 1) / TILE_INPUTS) - first) {}

    ARIL_INLINE bool is_done() const { return left_ <= 0; }

    ARIL_INLINE void step() {
        for (int64_t r = 0; r < rows_; r++) __builtin_prefetch(at_ + r * stride_);
        at_ += TILE_BYTES, left_--;
    }

private:
    const char* at_;
    int64_t stride_, rows_, left_;
};

// Brings what lies a little ahead: the rest of the matrix that is being read, then the beginning of the next.
class ReadAhead {
public:
    ReadAhead(const Matrix<bf16>& now, const Matrix<bf16>& next) : now_(now, far(now), now.width), next_(next, 0, far(next)) {}

    ARIL_INLINE void step() {
        if (!now_.is_done()) return now_.step();
        if (!next_.is_done()) next_.step();
    }

private:
    static int64_t far(const Matrix<bf16>& m) { return m.rows ? (FAR_LINES + m.rows - 1) / m.rows : 0; }

    Columnwise now_, next_;
};

class Tiled {
    static constexpr int64_t FEW = TILE;   // tokens of which x is turned
    static constexpr int64_t STRIPS = 8;   // of 32 columns of B, of 32 ranks, that stay in L1 while the tokens pass by

public:
    static constexpr bool PREPARES = true;
    static constexpr int64_t READING = 40, TOKENS = 256;

    struct Hands {
        Tiles tiles;
        NoTiny rule;
    };

    explicit Tiled(const Call<bf16>& call)
        : c_(call), units_(times(TILE_INPUTS, call.k)), width_(times(TILE_INPUTS, call.highest) * TILE_INPUTS) {}

    int64_t room() const { return c_.adapted * (units_ * TILE_INPUTS + c_.num_parts * width_ / 2); }

    void prepare(const Piece& piece) const {
        bf16* to = room_of(piece);
        const int64_t tokens = piece.tokens();
        const bf16* rows[FEW];
        for (int64_t i = 0; i < std::min(tokens, FEW); i++) rows[i] = row(piece.start + i);
        if (tokens <= FEW) return turn(to, rows, tokens, turned(tokens), c_.k);
        if (!is_in_a_row(piece))
            for (int64_t i = 0; i < tokens; i++) std::copy_n(row(piece.start + i), c_.k, to + i * c_.k);
    }

    void shrink(Hands& hands, const Piece& piece, int64_t part, Range ranks, const Matrix<bf16>& next) const {
        const Entry& e = c_.entry(piece, part);
        const Matrix<bf16> a{c_.arena + e.a_at + ranks.begin * c_.k, ranks.end - ranks.begin, c_.k};
        bf16* to = shrunk(piece.start, part) + ranks.begin;
        piece.tokens() <= FEW ? shrink_few(hands.tiles, to, piece, a, next) : shrink_many(hands.tiles, to, piece, a, next);
        const int64_t filled = times(TILE, ranks.end) * TILE, end = times(TILE_INPUTS, ranks.end) * TILE_INPUTS;
        for (int64_t at = piece.start; ranks.end == e.rank && at < piece.end; at++)
            std::fill(shrunk(at, part) + filled, shrunk(at, part) + end, 0);
    }

    void expand(Hands& hands, const Piece& piece, int64_t part, Range columns, const Matrix<bf16>& next) const {
        const Entry& e = c_.entry(piece, part);
        const int64_t size = c_.parts[part].size;
        const Matrix<bf16> b{c_.arena + e.b_at + columns.begin, e.rank, size};
        ReadAhead ahead({b.at, b.rows, b.width}, next);
        switch (piece.tokens()) {
            case 1: return expand_few<1, 2>(piece, part, b, columns, ahead);
            case 2: return expand_few<2, 2>(piece, part, b, columns, ahead);
            case 3:
            case 4: return expand_few<4, 1>(piece, part, b, columns, ahead);
            default: return expand_many(hands.tiles, piece, part, b, columns, ahead);
        }
    }

private:
    // Where a part's columns of each token begin.
    using Rows = bf16* const*;

    static int64_t times(int64_t width, int64_t count) { return (count + width - 1) / width; }

    const bf16* row(int64_t at) const { return c_.x + c_.order[at] * c_.x_stride; }

    Rows rows_of(const Piece& piece, int64_t column) const {
        static thread_local Scratch scratch;
        auto* rows = reinterpret_cast<bf16**>(scratch.get(piece.tokens() * sizeof(bf16*) / sizeof(float)));
        for (int64_t i = 0; i < piece.tokens(); i++) rows[i] = c_.y + c_.order[piece.start + i] * c_.y_stride + column;
        return rows;
    }

    // Of a piece's own rows of x, turned or one after the other.
    bf16* room_of(const Piece& piece) const { return reinterpret_cast<bf16*>(c_.scratch) + 2 * piece.start * units_ * TILE_INPUTS; }

    bool is_in_a_row(const Piece& piece) const {
        const int32_t* order = c_.order + piece.start;
        for (int64_t i = 1; i < piece.tokens(); i++)
            if (order[i] != order[0] + i) return false;
        return true;
    }

    // What a token's part was shrunk to: [width_], and shrunk_stride() to the next token.
    bf16* shrunk(int64_t at, int64_t part) const {
        return reinterpret_cast<bf16*>(c_.scratch + c_.adapted * units_ * TILE_INPUTS) + (at * c_.num_parts + part) * width_;
    }

    int64_t shrunk_stride() const { return c_.num_parts * width_; }

    // Rows of A as they lie in memory, times x.
    void shrink_few(Tiles& tiles, bf16* to, const Piece& piece, const Matrix<bf16>& a, const Matrix<bf16>& next) const {
        const int64_t tokens = piece.tokens(), columns = turned(tokens), each = std::min(a.rows, TILE);
        alignas(64) float sums[LEFT_ROWS * TILE];
        const __m512i counts = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const __m512i places = _mm512_mullo_epi32(counts, _mm512_set1_epi32(int(columns)));
        const Right x{room_of(piece), columns, c_.k};
        tiles.shape(each, each, columns, TILE);
        for (int64_t r = 0; r < a.rows; r += LEFT_ROWS) {
            const Matrix<bf16> some{a.at + r * c_.k, std::min(LEFT_ROWS, a.rows - r), c_.k};
            ReadAhead ahead(some, next);
            turned_product(sums, Left{some.at, c_.k, some.rows, std::min(each, some.rows)}, x, ahead);
            for (int64_t i = 0; i < some.rows; i += TILE)
                for (int64_t m = 0; m < tokens; m++) {
                    const auto real = __mmask16(first_numbers(some.rows - i));
                    const float* from = sums + i * columns + m;
                    keep(to + m * shrunk_stride() + r + i, _mm512_mask_i32gather_ps(__m512{}, real, places, from, 4));
                }
        }
    }

    // Rows of x as they lie in memory, times A.
    void shrink_many(Tiles& tiles, bf16* to, const Piece& piece, const Matrix<bf16>& a, const Matrix<bf16>& next) const {
        static thread_local Scratch scratch;
        auto* right = reinterpret_cast<bf16*>(scratch.get(units_ * TILE * TILE));
        const bool direct = is_in_a_row(piece);
        const bf16* x = direct ? row(piece.start) : room_of(piece);
        const int64_t stride = direct ? c_.x_stride : c_.k, tokens = piece.tokens();
        ReadAhead ahead({}, next);
        alignas(64) float sums[LEFT_ROWS * TILE];
        tiles.shape(TILE, TILE, TILE, TILE);
        for (int64_t r = 0; r < a.rows; r += TILE) {
            const bf16* rows[TILE];
            for (int64_t i = 0; i < TILE; i++) rows[i] = a.at + std::min(r + i, a.rows - 1) * c_.k;
            turn(right, rows, a.rows - r, TILE, c_.k);
            for (int64_t t = 0; t < tokens; t += LEFT_ROWS) {
                const int64_t first = std::max<int64_t>(0, std::min(t, tokens - TILE)), some = std::min(LEFT_ROWS, tokens - first);
                turned_product(sums, Left{x + first * stride, stride, some, TILE}, Right{right, TILE, c_.k}, ahead);
                for (int64_t m = 0; m < some; m++) keep(to + (first + m) * shrunk_stride() + r, _mm512_load_ps(sums + m * TILE));
            }
        }
    }

    static ARIL_INLINE void keep(bf16* to, __m512 values) {
        _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(values));
    }

    // M tokens, the last of which stands in for those that are missing, and C strips at once.
    template <int M, int C>
    void expand_few(const Piece& piece, int64_t part, const Matrix<bf16>& b, Range columns, ReadAhead& ahead) const {
        static thread_local Scratch scratch;
        float* widened = scratch.get(M * b.rows);
        const float* h[M];
        const Rows y = rows_of(piece, c_.parts[part].column + columns.begin);
        for (int m = 0; m < M; m++) {
            h[m] = widened + m * b.rows;
            copy(widened + m * b.rows, shrunk(std::min(piece.start + m, piece.end - 1), part), b.rows);
        }
        const int64_t width = columns.end - columns.begin;
        for (int64_t i = 0; i < width; i += C * NR) {
            __mmask32 real[C];
            for (int c = 0; c < C; c++) real[c] = first_numbers(width - i - c * NR), ahead.step();
            Columns sums[M][C];
            tile_chains(sums, h, b.at + i, b.width, b.rows, real);
            for (int m = 0; m < piece.tokens(); m++)
                for (int c = 0; c < C; c++) {
                    bf16* to = y[m] + i + c * NR;
                    _mm512_mask_storeu_epi16(to, real[c], added(_mm512_maskz_loadu_epi16(real[c], to), sums[m][c]));
                }
        }
    }

    void expand_many(Tiles& tiles, const Piece& piece, int64_t part, const Matrix<bf16>& b, Range columns, ReadAhead& ahead) const {
        static thread_local Scratch scratch;
        const int64_t tokens = piece.tokens(), height = std::min(tokens, TILE), width = columns.end - columns.begin;
        const int64_t pairs = times(2, b.rows), units = times(TILE, pairs);
        const int64_t size = units * TILE * 2 * NR, most = std::max<int64_t>(1, STRIPS / units);
        const Rows y = rows_of(piece, c_.parts[part].column + columns.begin);
        auto* paired = reinterpret_cast<bf16*>(scratch.get(most * size / 2));
        for (int64_t i = 0; i < most; i++) std::fill(paired + i * size + pairs * 2 * NR, paired + (i + 1) * size, 0);
        alignas(64) float sums[2][TILE * NR + W];  // never whole pages apart
        Strip last{};
        tiles.shape(height, height, TILE, std::min(pairs, TILE));
        int turn = 0;
        for (int64_t begin = 0; begin < width; begin += most * NR) {
            const int64_t end = std::min(begin + most * NR, width), strips = times(NR, end - begin);
            for (int64_t i = 0; i < strips; i++, ahead.step()) pair_ranks(paired + i * size, b, Range(begin + i * NR, end));
            for (int64_t at = 0; at < tokens; at += TILE) {
                const int64_t first = std::max<int64_t>(std::min(at, tokens - TILE), 0);
                const bf16* h = shrunk(piece.start + first, part);
                for (int64_t i = 0; i < strips; i++, turn ^= 1) {
                    multiply(sums[turn], h, paired + i * size, units);
                    add(y, last);  // of the registers before: what is stored from tiles is slow to be there
                    last = Strip{sums[turn] + (at - first) * NR, at, first + height, Range(begin + i * NR, end)};
                }
            }
        }
        add(y, last);
    }

    // to[unit][pairs of ranks][even columns or odd ones][16][2]
    static void pair_ranks(bf16* to, const Matrix<bf16>& b, Range columns) {
        const __mmask32 real = first_numbers(columns.end - columns.begin);
        const bf16* from = b.at + columns.begin;
        for (int64_t r = 0; r < b.rows; r += 2, from += 2 * b.width, to += 2 * NR) {
            const __m512i one = _mm512_maskz_loadu_epi16(real, from);
            const __m512i other = r + 1 < b.rows ? _mm512_maskz_loadu_epi16(real, from + b.width) : __m512i{};
            _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, one, _mm512_slli_epi32(other, 16)));
            _mm512_storeu_si512(to + NR, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(one, 16), other));
        }
        for_tiles(to);
    }

    // sums[rows][even columns, odd columns] = h[rows][units] times what pair_ranks made.
    ARIL_INLINE void multiply(float* sums, const bf16* h, const bf16* b, int64_t units) const {
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t i = 0; i < units; i++, b += TILE * 2 * NR) {
            _tile_loadd(4, h + i * TILE_INPUTS, shrunk_stride() * 2);
            _tile_loadd(6, b, 2 * TILE_BYTES);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + NR, 2 * TILE_BYTES);
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_stored(0, sums, NR * 4);
        _tile_stored(1, sums + TILE, NR * 4);
    }

    // What is still to be added to rows begin .. end in the first columns of a range.
    struct Strip {
        const float* sums;
        int64_t begin, end;
        Range columns{0, 0};
    };

    static ARIL_INLINE void add(Rows y, const Strip& strip) {
        const float* sums = strip.sums;
        const int64_t column = strip.columns.begin, width = strip.columns.end - column;
        const __mmask32 real = first_numbers(width);
        for (int64_t m = strip.begin; m < strip.end; m++, sums += NR) {
            const Columns more{_mm512_load_ps(sums), _mm512_load_ps(sums + TILE)};
            bf16* to = y[m] + column;
            if (width >= NR) _mm512_storeu_si512(to, added(_mm512_loadu_si512(to), more));
            else _mm512_mask_storeu_epi16(to, real, added(_mm512_maskz_loadu_epi16(real, to), more));
        }
    }

    static ARIL_INLINE __m512i added(__m512i was, Columns sums) {
        alignas(64) uint16_t places[32];
        for (int i = 0; i < 32; i++) places[i] = uint16_t(i / 2 + i % 2 * 16);
        sums.add(columns_of(was));
        return _mm512_permutexvar_epi16(_mm512_load_si512(places), (__m512i)_mm512_cvtne2ps_pbh(sums.odd, sums.even));
    }

    const Call<bf16>& c_;
    const int64_t units_, width_;
};

}  // namespace aril
#endif
