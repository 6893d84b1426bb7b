// A recorded step: calls after one another, each as the address of a taped function, the number of its words, and these.
#include "tape.h"

extern "C" void aril_replay(const uint64_t* tape, int64_t size) {
    for (const uint64_t *at = tape, *end = tape + size; at < end; at += 2 + at[1])
        reinterpret_cast<void (*)(const uint64_t*)>(at[0])(at + 2);
}
