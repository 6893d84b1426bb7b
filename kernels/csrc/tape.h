// Calls as numbers, so that a list of them can be made again without Python: tape.cpp walks it.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace aril {

template <class T>
T of_word(uint64_t word) {
    static_assert(sizeof(T) == sizeof word, "pointers, int64_t and double are words");
    T value;
    memcpy(&value, &word, sizeof value);
    return value;
}

template <class... Args, size_t... I>
void call(void (*function)(Args...), const uint64_t* words, std::index_sequence<I...>) {
    function(of_word<Args>(words[I])...);
}

template <class... Args>
void call(void (*function)(Args...), const uint64_t* words) {
    call(function, words, std::index_sequence_for<Args...>{});
}

}  // namespace aril

// Beside an exported function: the same with its arguments as words, as a tape calls it.
#define ARIL_TAPED(function) \
    extern "C" void function##_taped(const uint64_t* words) { aril::call(function, words); }
