// Attention over a bfloat16 cache in tile registers (AMX), in chunks at fixed positions. A chunk's weights are taken relative
// to its own highest score and rounded to bfloat16, and the sum that they are divided by in the end is that of the rounded
// weights; chunks are joined in order (Milakov and Gimelshein 2018).
//
// A score and a sum of values are chains over whole units, to which what is hidden adds an exact zero: a query's result has the
// same bits whether its token came in a prompt, in a piece of one, or alone, and however a long row was cut.
#include <optional>

#include "attention_few.h"
#include "attention_many.h"

#if defined(ARIL_TILES)

namespace aril {
namespace {

// Of either kind, whichever a group is.
class TileWorker {
public:
    using T = bf16;
    static constexpr int64_t KEYS = aril::KEYS, QUERY_ROWS = 512, APART_FROM = TILE + 1;
    static constexpr double WORTH = 1e6;

    static int64_t size(int64_t tokens, const Shape& s) {
        return FewWorker::takes(tokens, s) ? FewWorker::size(tokens, s) : ManyWorker::size(tokens, s);
    }

    TileWorker(const Tensors<bf16>& tensors, const Shape& shape, const Group& group) {
        if (FewWorker::takes(group.tokens, shape))
            few_.emplace(tensors, shape, group);
        else
            many_.emplace(tensors, shape, group);
    }

    void bring(const Task& task) {
        if (many_) many_->bring(task);
    }
    void run(const Task& task, const Task* next) { few_ ? few_->run(task) : many_->run(task, next); }
    void join_parts() { few_ ? few_->join_parts() : many_->join_parts(); }

private:
    std::optional<FewWorker> few_;
    std::optional<ManyWorker> many_;
};

}  // namespace

void attend_by_tiles(const Tensors<bf16>& tensors, const Shape& shape, int64_t cores) {
    Plan<TileWorker>(tensors, shape, cores).run(tensors);
}

}  // namespace aril

#endif
