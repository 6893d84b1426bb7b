// The numbers of a grouped weight, in panels [panel][groups][NR], become what a code's value is multiplied by and what is then
// added: W = value * scale + offset with offset = min - zero * scale.
#pragma once

#include "common.h"

namespace aril {

enum NumberType : int { NUMBER_F32 = 0, NUMBER_BF16 = 1, NUMBER_F16 = 2, NUMBER_U8 = 3, NUMBER_I8 = 4 };

// run(a number of the type)
template <class Run>
ARIL_INLINE void by_number(int64_t type, Run run) {
    switch (type) {
        case NUMBER_F32: return run(float{});
        case NUMBER_BF16: return run(bf16{});
        case NUMBER_F16: return run(f16{});
        case NUMBER_U8: return run(uint8_t{});
        default: return run(int8_t{});
    }
}

// What a reader's values are short of: the code's own is value * step + shift.
struct Lack {
    float step, shift;
};

// ops/grouped.py's Groups.
struct Numbers {
    const void *fine, *coarse;
    int64_t fine_type, coarse_type, span;
};

struct Factors {
    Numbers scales, mins;
    const uint8_t* zeros;
    float zero;  // of every group, where `zeros` is null
    int64_t groups;

    bool has_offsets(Lack lack) const { return zeros || mins.fine || zero != lack.shift; }

    // Both of [count][NR], of groups first .. first + count of a panel, for values that lack something.
    void read(float* scales_to, float* offsets, int64_t panel, int64_t first, int64_t count, Lack lack) const {
        const int64_t from = (panel * groups + first) * NR, size = count * NR;
        if (!scales.coarse && !mins.fine)
            return by_number(scales.fine_type, [&](auto number) {
                const auto* at = static_cast<const decltype(number)*>(scales.fine) + from;
                finish(scales_to, offsets, size, from, lack, [&](int64_t i) { return load(at + i); }, [](int64_t) { return vf{}; });
            });
        two_levels(scales, scales_to, panel, first, count);
        if (mins.fine) two_levels(mins, offsets, panel, first, count);
        else std::fill(offsets, offsets + size, 0.0f);
        finish(scales_to, offsets, size, from, lack, [&](int64_t i) { return load(scales_to + i); },
               [&](int64_t i) { return load(offsets + i); });
    }

    // Bring the finer numbers of such groups; they need not be there.
    void fetch(int64_t panel, int64_t first, int64_t count) const {
        const int64_t from = (panel * groups + first) * NR;
        const auto bring = [&](const void* numbers, int64_t type) {
            const int64_t size = type == NUMBER_F32 ? 4 : type == NUMBER_BF16 || type == NUMBER_F16 ? 2 : 1;
            for (int64_t i = 0; numbers && i < count * NR * size; i += 64) prefetch(static_cast<const char*>(numbers) + from * size + i);
        };
        bring(scales.fine, scales.fine_type);
        bring(mins.fine, mins.fine_type);
        bring(zeros, NUMBER_U8);
    }

private:
    template <class Scale, class Min>
    ARIL_INLINE void finish(float* scales_to, float* offsets, int64_t size, int64_t from, Lack lack, Scale scale_at, Min min_at) const {
        const auto run = [&](auto zero_at) {
            for (int64_t i = 0; i < size; i += W) {
                const vf scale = scale_at(i);
                store(offsets + i, min_at(i) - zero_at(i) * scale);
                store(scales_to + i, scale * lack.step);
            }
        };
        if (zeros) return run([&](int64_t i) { return load(zeros + from + i) - lack.shift; });
        const vf one = splat(zero - lack.shift);
        run([&](int64_t) { return one; });
    }

public:
    // to[count][NR] = the numbers themselves, of groups first .. first + count of a panel.
    void two_levels(const Numbers& numbers, float* to, int64_t panel, int64_t first, int64_t count) const {
        by_number(numbers.fine_type, [&](auto number) {
            const auto* at = static_cast<const decltype(number)*>(numbers.fine) + (panel * groups + first) * NR;
            for (int64_t i = 0; i < count * NR; i += W) store(to + i, load(at + i));
        });
        if (!numbers.coarse) return;
        const int64_t spans = (groups + numbers.span - 1) / numbers.span;
        by_number(numbers.coarse_type, [&](auto number) {
            const auto* at = static_cast<const decltype(number)*>(numbers.coarse) + panel * spans * NR;
            for (int64_t g = first; g < first + count; g++, to += NR)
                for (int i = 0; i < NR; i += W) store(to + i, load(to + i) * load(at + g / numbers.span * NR + i));
        });
    }
};

}  // namespace aril
