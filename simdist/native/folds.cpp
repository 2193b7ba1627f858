// simdist._native: the folds of collectives, each input read once and each output written once; and their copies.
// What judges read of memory is in memory.inc.
//
// Folds know neither torch nor ranks: they are given addresses, types and orders of additions, so that one build
// serves every torch, and every Python that has the stable ABI. What comes out has the bits that the folds in Python
// give, which stay: they are what it is compared with, and what does where it is not built.
//
// A fold goes tile by tile, a few kilobytes of every rank at a time, so that all its steps find their data in the cache.
// Nothing is written before a tile is done; then all targets are. The memory of a rank may so be source and target.
//
// Invariants:
// - What a fold has not done it has not touched. It returns how many elements are done, in the order in which they lie;
//   fewer than all if a tile holds what only torch knows (the bits of a NaN), or none if it can't do such a fold at all.
// - The interpreter is held for small folds, which take less time than to let go of it, and not for large ones.
// - No state: nothing is kept from one call to the next, no thread is started.
//
// Doubt: one thread does it all. Worlds are pinned to one core, and one core reads and writes at nearly the rate of the
// memory here; a machine whose memory needs several cores to be busy would gain from more.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#if defined(__clang__)
#define SIMDIST_ELEMENTWISE _Pragma("clang loop vectorize(assume_safety)")
#else
#define SIMDIST_ELEMENTWISE _Pragma("GCC ivdep")
#endif

namespace {

// The caller owns them. `Py_RETURN_TRUE` of Python 3.12 and 3.13 counts no reference, whatever the stable ABI that is
// asked for, and Python 3.11, which counts them, would end in the middle of a run.
PyObject *owned_bool(bool value) { return PyBool_FromLong(value); }
PyObject *owned_none() {
    Py_INCREF(Py_None);
    return Py_None;
}

enum Type { kFloat32, kFloat64, kFloat16, kBfloat16, kInt8, kUint8, kInt16, kInt32, kInt64, kTypes };
enum Operation { kSum, kProduct, kMinimum, kMaximum, kLeast, kMost, kAnd, kOr, kXor, kOperations };

using Step = void (*)(const void *local, const void *received, void *out, size_t count);
using Check = bool (*)(const void *total, size_t count);
using Oddity = bool (*)(const void *local, const void *received, size_t count);
using Scale = void (*)(const void *from, void *to, size_t count, double factor);
using Search = bool (*)(const char *from, size_t bytes);  // for a value that is infinite or no number
using Divide = void (*)(void *total, size_t count, double divisor);

// What an operation on elements of a type is made of; without a step it is not there.
struct Kernel {
    size_t element = 0;  // bytes
    Step step = nullptr;
    Check check = nullptr;   // of totals
    Oddity oddity = nullptr;  // of the two operands of each step
    Scale scale = nullptr;
    Divide divide = nullptr;

    Kernel with(Step its_step, Check its_check = nullptr, Oddity its_oddity = nullptr) const {
        Kernel made = *this;
        made.step = its_step;
        made.check = its_check;
        made.oddity = its_oddity;
        return made;
    }
};

constexpr size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

namespace plain {
#if defined(__aarch64__)
#define SIMDIST_HALVES
void widen(const void *from, float *to, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        __fp16 value;
        std::memcpy(&value, static_cast<const char *>(from) + 2 * i, 2);
        to[i] = value;
    }
}
void narrow(const float *from, void *to, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        const __fp16 value = static_cast<__fp16>(from[i]);
        std::memcpy(static_cast<char *>(to) + 2 * i, &value, 2);
    }
}
#endif
#include "tiles.inc"
}  // namespace plain

#if defined(__x86_64__)
#define SIMDIST_HALVES
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
namespace wide {
#define SIMDIST_EIGHT
inline __m256 load8(const void *halves) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i *>(halves)));
}
inline void store8(void *halves, __m256 values) {
    _mm_storeu_si128(static_cast<__m128i *>(halves),
                     _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
void widen(const void *from, float *to, size_t count) {
    const char *halves = static_cast<const char *>(from);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, load8(halves + 2 * i));
    if (i < count) {
        char rest[16] = {};
        float eight[8];
        std::memcpy(rest, halves + 2 * i, 2 * (count - i));
        _mm256_storeu_ps(eight, load8(rest));
        std::memcpy(to + i, eight, sizeof(float) * (count - i));
    }
}
void narrow(const float *from, void *to, size_t count) {
    char *halves = static_cast<char *>(to);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) store8(halves + 2 * i, _mm256_loadu_ps(from + i));
    if (i < count) {
        float eight[8] = {};
        char rest[16];
        std::memcpy(eight, from + i, sizeof(float) * (count - i));
        store8(rest, _mm256_loadu_ps(eight));
        std::memcpy(halves + 2 * i, rest, 2 * (count - i));
    }
}
#include "tiles.inc"
}  // namespace wide
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

bool is_wide() {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

Kernel kernels[kTypes][kOperations];
Search searches[kTypes];

void fill_kernels() {
    Kernel (*source)(int, int) = plain::kernel_of;
    Search (*search)(int) = plain::search_of;
#if defined(__x86_64__)
    if (is_wide()) {
        source = wide::kernel_of;
        search = wide::search_of;
    }
#endif
    for (int type = 0; type < kTypes; ++type) searches[type] = search(type);
    for (int type = 0; type < kTypes; ++type) {
        for (int operation = 0; operation < kOperations; ++operation) {
            kernels[type][operation] = source(type, operation);
        }
    }
}

// -- orders of additions ----------------------------------------------------------------------------------------------

// What is done with a tile, over a stack of tiles: load a rank's, let a rank's operand meet the uppermost, or let the
// one below meet it.
enum Act : int32_t { kLoad, kStep, kMerge };
struct Instruction {
    Act act;
    int32_t rank;
};

constexpr size_t kTileBytes = 4096;
constexpr size_t kLargeBytes = 128 << 10;  // of all ranks, from which on the interpreter is not held
// Of all ranks, from which on they come from memory and not from a cache: smaller tiles then keep more of it busy
// (measured, GiB/s of the ranks' bytes with 256 bytes, 512, 1 KiB and 4 KiB: 4 ranks 15.7, 17.7, 17.8, 16.1; 8 ranks 13.5,
// 16.1, 9.9 to 11.4, 10.1; 16 ranks 11.2, 11.5, 9.6; fetching lines ahead by hand makes it slower).
constexpr size_t kFarBytes = 4 << 20;
constexpr size_t kFarTileBytes = 512;

size_t tile_bytes(size_t bytes) { return bytes >= kFarBytes ? kFarTileBytes : kTileBytes; }

// Memory that is freed at the end of a block.
template <class T> class Block {
  public:
    explicit Block(size_t count) : memory_(static_cast<T *>(std::malloc(count ? count * sizeof(T) : 1))) {}
    ~Block() { std::free(memory_); }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    T *get() const { return memory_; }
    T &operator[](size_t index) const { return memory_[index]; }
    explicit operator bool() const { return memory_ != nullptr; }

  private:
    T *memory_;
};

struct Fold {
    Kernel kernel;
    char *const *sources;
    double factor;   // of each operand, 0 for none
    double divisor;  // of the totals, 0 for none
    char *tiles;     // the stack, and one more for what is scaled
    size_t tile_size;

    char *tile(size_t depth) const { return tiles + (depth + 1) * kTileBytes; }

    // Put the total of a tile into the lowest place of the stack; false if an element of it is torch's own affair.
    bool tile_of(const Instruction *program, size_t length, size_t first, size_t count) const {
        const size_t offset = first * kernel.element;
        const char *top = nullptr;  // the uppermost operand, which may still lie where its rank has it
        size_t depth = 0;           // how many lie on the stack
        for (size_t index = 0; index < length; ++index) {
            const Instruction each = program[index];
            if (each.act == kMerge) {
                char *below = tile(depth - 2);
                if (!meet(below, tile(depth - 1), below, count)) return false;
                top = below;
                --depth;
                continue;
            }
            const char *operand = sources[each.rank] + offset;
            if (each.act == kLoad) {
                char *place = tile(depth++);
                const bool next_steps = index + 1 < length && program[index + 1].act == kStep;
                if (factor != 0) {
                    kernel.scale(operand, place, count, factor);
                    top = place;
                } else if (next_steps) {
                    top = operand;
                } else {
                    std::memcpy(place, operand, count * kernel.element);
                    top = place;
                }
                continue;
            }
            if (factor != 0) {
                kernel.scale(operand, tiles, count, factor);
                operand = tiles;
            }
            char *place = tile(depth - 1);
            if (!meet(operand, top, place, count)) return false;
            top = place;
        }
        char *total = tile(0);
        if (kernel.check && kernel.check(total, count)) return false;
        if (divisor != 0) kernel.divide(total, count, divisor);
        return true;
    }

    bool meet(const char *local, const char *received, char *out, size_t count) const {
        if (kernel.oddity && kernel.oddity(local, received, count)) return false;
        kernel.step(local, received, out, count);
        return true;
    }

    // Fold the elements from `first` to `last`; how far that went.
    size_t span(const Instruction *program, size_t length, size_t first, size_t last, char *const *targets,
                size_t count_targets) const {
        const size_t most = tile_size / kernel.element;
        while (first < last) {
            const size_t count = smaller(most, last - first);
            if (!tile_of(program, length, first, count)) break;
            for (size_t index = 0; index < count_targets; ++index) {
                std::memcpy(targets[index] + first * kernel.element, tile(0), count * kernel.element);
            }
            first += count;
        }
        return first;
    }
};

// A ring: the chunk of owner c starts at rank c + step, and goes on by steps until it has met c itself.
void put_ring(Instruction *program, size_t ranks, size_t owner, int step) {
    size_t rank = owner;
    for (size_t hop = 0; hop < ranks; ++hop) {
        rank = step > 0 ? (rank + 1 == ranks ? 0 : rank + 1) : (rank == 0 ? ranks - 1 : rank - 1);
        program[hop] = {hop == 0 ? kLoad : kStep, static_cast<int32_t>(rank)};
    }
}

// -- memory of several ranks that must not be the same ----------------------------------------------------------------

struct Range {
    uintptr_t begin, end;
};

int by_begin(const void *a, const void *b) {
    const uintptr_t x = static_cast<const Range *>(a)->begin, y = static_cast<const Range *>(b)->begin;
    return x < y ? -1 : x > y;
}

bool overlap(Range *ranges, size_t count) {
    std::qsort(ranges, count, sizeof(Range), by_begin);
    for (size_t index = 1; index < count; ++index) {
        if (ranges[index].begin < ranges[index - 1].end) return true;
    }
    return false;
}

// -- what Python calls ------------------------------------------------------------------------------------------------

// The addresses in a list or tuple.
struct Addresses {
    Block<char *> memory;
    size_t count;

    explicit Addresses(PyObject *given) : memory(count_of(given)), count(count_of(given)) {
        if (!memory) PyErr_NoMemory();
        const bool is_list = PyList_Check(given);
        for (size_t index = 0; index < count && !PyErr_Occurred(); ++index) {
            const Py_ssize_t place = static_cast<Py_ssize_t>(index);
            memory[index] = static_cast<char *>(
                PyLong_AsVoidPtr(is_list ? PyList_GetItem(given, place) : PyTuple_GetItem(given, place)));
        }
    }

    static size_t count_of(PyObject *given) {
        if (PyList_Check(given)) return static_cast<size_t>(PyList_Size(given));
        if (PyTuple_Check(given)) return static_cast<size_t>(PyTuple_Size(given));
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "addresses are given as a list or a tuple");
        return 0;
    }
};

bool is_among(char *address, const Addresses &all, size_t likely) {
    if (likely < all.count && all.memory[likely] == address) return true;
    for (size_t index = 0; index < all.count; ++index) {
        if (all.memory[index] == address) return true;
    }
    return false;
}

// True if no rank reads what is written for another element, from one byte to another of each. Targets that get all may
// be sources: an element is read before it is written. `ranges` has room for all sources and targets.
bool may_fold(const Addresses &sources, const Addresses &targets, Range *ranges, size_t begin, size_t end,
              size_t each = 0) {
    size_t count = 0;
    for (size_t rank = 0; rank < sources.count; ++rank) {
        if (!sources.memory[rank]) return false;
        const uintptr_t base = reinterpret_cast<uintptr_t>(sources.memory[rank]);
        ranges[count++] = {base + begin, base + end};
    }
    for (size_t index = 0; index < targets.count; ++index) {
        if (!targets.memory[index]) return false;
        if (is_among(targets.memory[index], sources, index)) continue;
        const uintptr_t base = reinterpret_cast<uintptr_t>(targets.memory[index]);
        ranges[count++] = each ? Range{base + begin + index * each, base + begin + (index + 1) * each}
                               : Range{base + begin, base + end};
    }
    return !overlap(ranges, count);
}

PyThreadState *let_go(size_t bytes) { return bytes >= kLargeBytes ? PyEval_SaveThread() : nullptr; }

bool number(PyObject *given, size_t &into) {
    into = PyLong_AsSize_t(given);
    return !(into == static_cast<size_t>(-1) && PyErr_Occurred());
}

bool real(PyObject *given, double &into) {
    into = PyFloat_AsDouble(given);
    return !(into == -1.0 && PyErr_Occurred());
}

bool kernel_at(PyObject *type, PyObject *operation, Kernel &into) {
    size_t row, column;
    if (!number(type, row) || !number(operation, column)) return false;
    if (row >= kTypes || column >= kOperations) {
        PyErr_SetString(PyExc_ValueError, "there is no such type or operation");
        return false;
    }
    into = kernels[row][column];
    return true;
}

bool takes(Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return true;
    PyErr_Format(PyExc_TypeError, "%zd arguments are taken, and %zd were given", wanted, given);
    return false;
}

PyDoc_STRVAR(ring_doc,
             "ring(type, operation, sources, targets, first, last, chunk, owner, step, factor, divisor, each)\n\n"
             "Fold elements around a ring, in chunks, the first of which is of rank `owner`. With `each`, the k-th target\n"
             "gets the k-th so many elements; else all targets get all.");
PyObject *ring(PyObject *, PyObject *const *given, Py_ssize_t count_given) {
    if (!takes(count_given, 12)) return nullptr;
    Fold fold{};
    size_t first, last, chunk, owner, each;
    if (!kernel_at(given[0], given[1], fold.kernel) || !number(given[4], first) || !number(given[5], last) ||
        !number(given[6], chunk) || !number(given[7], owner) || !real(given[9], fold.factor) ||
        !real(given[10], fold.divisor) || !number(given[11], each)) {
        return nullptr;
    }
    const int step = PyLong_AsLong(given[8]) < 0 ? -1 : 1;
    if (PyErr_Occurred()) return nullptr;
    const Addresses sources(given[2]);
    if (PyErr_Occurred()) return nullptr;
    const Addresses targets(given[3]);
    if (PyErr_Occurred()) return nullptr;
    const size_t ranks = sources.count, element = fold.kernel.element;
    const bool can = fold.kernel.step && (fold.factor == 0 || fold.kernel.scale) &&
                     (fold.divisor == 0 || fold.kernel.divide) && ranks > 0 && chunk > 0 && owner < ranks && first <= last;
    if (!can || (each && each * targets.count != last - first)) return PyLong_FromSize_t(first);

    Block<Range> ranges(ranks + targets.count);
    Block<Instruction> program(ranks);
    Block<char> tiles(2 * kTileBytes);
    if (!ranges || !program || !tiles) return PyErr_NoMemory();
    // A target that gets a part is taken as if it began where it would get all: elements are counted alike everywhere.
    for (size_t index = 0; each && index < targets.count; ++index) {
        if (!targets.memory[index]) return PyLong_FromSize_t(first);
        targets.memory[index] -= (first + index * each) * element;
    }
    if (!may_fold(sources, targets, ranges.get(), first * element, last * element, each * element)) {
        return PyLong_FromSize_t(first);
    }

    fold.sources = sources.memory.get();
    fold.tiles = tiles.get();
    const size_t bytes = (last - first) * element * ranks;
    fold.tile_size = tile_bytes(bytes);
    PyThreadState *state = let_go(bytes);
    size_t place = first, current = ranks;
    while (place < last) {
        const size_t number_of_chunk = (place - first) / chunk, turned = (owner + number_of_chunk) % ranks;
        size_t end = smaller(last, first + (number_of_chunk + 1) * chunk);
        const size_t part = each ? (place - first) / each : 0;
        if (each) end = smaller(end, first + (part + 1) * each);
        if (turned != current) put_ring(program.get(), ranks, current = turned, step);
        const size_t done = fold.span(program.get(), ranks, place, end, targets.memory.get() + part,
                                      each ? 1 : targets.count);
        place = done;
        if (done < end) break;
    }
    if (state) PyEval_RestoreThread(state);
    return PyLong_FromSize_t(place);
}

PyDoc_STRVAR(tree_doc,
             "tree(type, operation, sources, targets, program, first, last, factor)\n\n"
             "Fold elements as a program says, in words of four times a rank plus 0 (load), 1 (step) or 2 (merge).");
PyObject *tree(PyObject *, PyObject *const *given, Py_ssize_t count_given) {
    if (!takes(count_given, 8)) return nullptr;
    Fold fold{};
    size_t first, last;
    if (!kernel_at(given[0], given[1], fold.kernel) || !number(given[5], first) || !number(given[6], last) ||
        !real(given[7], fold.factor)) {
        return nullptr;
    }
    const Addresses sources(given[2]);
    if (PyErr_Occurred()) return nullptr;
    const Addresses targets(given[3]);
    if (PyErr_Occurred()) return nullptr;
    const Addresses words(given[4]);
    if (PyErr_Occurred()) return nullptr;

    Block<Instruction> program(words.count);
    Block<Range> ranges(sources.count + targets.count);
    if (!program || !ranges) return PyErr_NoMemory();
    size_t depth = 0, deepest = 0;
    for (size_t index = 0; index < words.count; ++index) {
        const uintptr_t word = reinterpret_cast<uintptr_t>(words.memory[index]), rank = word / 4;
        program[index] = {static_cast<Act>(word % 4), static_cast<int32_t>(rank)};
        const bool fits = word % 4 == kLoad    ? rank < sources.count
                          : word % 4 == kStep  ? rank < sources.count && depth >= 1
                          : word % 4 == kMerge ? depth >= 2
                                               : false;
        if (!fits) {
            PyErr_SetString(PyExc_ValueError, "such a program can't run");
            return nullptr;
        }
        depth += word % 4 == kLoad ? 1 : word % 4 == kMerge ? -1 : 0;
        deepest = depth > deepest ? depth : deepest;
    }
    if (depth != 1) {
        PyErr_SetString(PyExc_ValueError, "such a program has not one total");
        return nullptr;
    }
    const bool can = fold.kernel.step && (fold.factor == 0 || fold.kernel.scale) && first <= last;
    if (!can || !may_fold(sources, targets, ranges.get(), first * fold.kernel.element, last * fold.kernel.element)) {
        return PyLong_FromSize_t(first);
    }
    Block<char> tiles((deepest + 1) * kTileBytes);
    if (!tiles) return PyErr_NoMemory();
    fold.sources = sources.memory.get();
    fold.tiles = tiles.get();
    const size_t bytes = (last - first) * fold.kernel.element * sources.count;
    fold.tile_size = tile_bytes(bytes);
    PyThreadState *state = let_go(bytes);
    first = fold.span(program.get(), words.count, first, last, targets.memory.get(), targets.count);
    if (state) PyEval_RestoreThread(state);
    return PyLong_FromSize_t(first);
}

PyDoc_STRVAR(partial_ring_doc,
             "partial_ring(type, operation, tensors, root, length, chunk)\n\n"
             "Fold elements down a ring, in chunks, to one root, in place; the other ranks keep what they have sent on.");
PyObject *partial_ring(PyObject *, PyObject *const *given, Py_ssize_t count_given) {
    if (!takes(count_given, 6)) return nullptr;
    Kernel kernel;
    size_t root, length, chunk;
    if (!kernel_at(given[0], given[1], kernel) || !number(given[3], root) || !number(given[4], length) ||
        !number(given[5], chunk)) {
        return nullptr;
    }
    const Addresses tensors(given[2]);
    if (PyErr_Occurred()) return nullptr;
    const size_t ranks = tensors.count, element = kernel.element;
    Block<Range> ranges(ranks);
    Block<Instruction> program(ranks);
    if (!ranges || !program) return PyErr_NoMemory();
    if (!kernel.step || root >= ranks || chunk == 0 || !may_fold(tensors, tensors, ranges.get(), 0, length * element)) {
        return PyLong_FromSize_t(0);
    }
    // What each hop gives is kept until it is known that the last one holds no NaN.
    const size_t bytes = length * element * ranks, tile_size = smaller(tile_bytes(bytes), ranks < 128 ? 2048 : 256);
    const size_t most = tile_size / element;
    Block<char> tiles(ranks * tile_size);
    if (!tiles) return PyErr_NoMemory();
    PyThreadState *state = let_go(bytes);
    size_t place = 0;
    while (place < length) {
        put_ring(program.get(), ranks, place / chunk % ranks, -1);
        const size_t end = smaller(length, (place / chunk + 1) * chunk), count = smaller(most, end - place);
        const size_t offset = place * element, size = count * element;
        const char *received = tensors.memory[program[0].rank] + offset;
        bool fits = true;
        for (size_t hop = 1; hop < ranks && fits; ++hop) {
            char *kept = tiles.get() + hop * tile_size;
            const char *local = tensors.memory[program[hop].rank] + offset;
            fits = !(kernel.oddity && kernel.oddity(local, received, count));
            if (fits) kernel.step(local, received, kept, count);
            received = kept;
        }
        if (!fits || (kernel.check && kernel.check(received, count))) break;
        for (size_t hop = 1; hop < ranks; ++hop) {
            const size_t rank = static_cast<size_t>(program[hop].rank);
            if (rank != root) std::memcpy(tensors.memory[rank] + offset, tiles.get() + hop * tile_size, size);
        }
        if (ranks > 1) std::memcpy(tensors.memory[root] + offset, received, size);
        place += count;
    }
    if (state) PyEval_RestoreThread(state);
    return PyLong_FromSize_t(place);
}

PyDoc_STRVAR(copy_doc,
             "copy(targets, sources, sizes)\n\n"
             "Copy so many bytes each, in order; False, and nothing is done, if some target and its source overlap in part.");
PyObject *copy(PyObject *, PyObject *const *given, Py_ssize_t count_given) {
    if (!takes(count_given, 3)) return nullptr;
    const Addresses targets(given[0]);
    if (PyErr_Occurred()) return nullptr;
    const Addresses sources(given[1]);
    if (PyErr_Occurred()) return nullptr;
    const Addresses sizes(given[2]);
    if (PyErr_Occurred()) return nullptr;
    if (sources.count != targets.count || sizes.count != targets.count) {
        PyErr_SetString(PyExc_ValueError, "each target has a source and a size");
        return nullptr;
    }
    size_t bytes = 0;
    for (size_t index = 0; index < targets.count; ++index) {
        const uintptr_t target = reinterpret_cast<uintptr_t>(targets.memory[index]);
        const uintptr_t source = reinterpret_cast<uintptr_t>(sources.memory[index]);
        const uintptr_t size = reinterpret_cast<uintptr_t>(sizes.memory[index]);
        const bool apart = target + size <= source || source + size <= target;
        if (size && (!target || !source || (target != source && !apart))) return owned_bool(false);
        bytes += size;
    }
    PyThreadState *state = let_go(bytes);
    for (size_t index = 0; index < targets.count; ++index) {
        const size_t size = reinterpret_cast<uintptr_t>(sizes.memory[index]);
        if (size && targets.memory[index] != sources.memory[index]) {
            std::memcpy(targets.memory[index], sources.memory[index], size);
        }
    }
    if (state) PyEval_RestoreThread(state);
    return owned_bool(true);
}

#include "memory.inc"

PyMethodDef methods[] = {
    {"ring", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ring)), METH_FASTCALL, ring_doc},
    {"tree", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(tree)), METH_FASTCALL, tree_doc},
    {"partial_ring", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(partial_ring)), METH_FASTCALL,
     partial_ring_doc},
    {"copy", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(copy)), METH_FASTCALL, copy_doc},
    {"copied", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(copied)), METH_FASTCALL, copied_doc},
    {"holds", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(holds)), METH_FASTCALL, holds_doc},
    {"exchange", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(exchange)), METH_FASTCALL, exchange_doc},
    {"not_finite", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(not_finite)), METH_FASTCALL,
     not_finite_doc},
    {"row", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(row)), METH_FASTCALL, row_doc},
    {"uniform", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(uniform)), METH_FASTCALL, uniform_doc},
    {"addresses", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(addresses)), METH_FASTCALL, addresses_doc},
    {"content", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(content)), METH_FASTCALL, content_doc},
    {nullptr, nullptr, 0, nullptr},
};

int fill(PyObject *module) {
    fill_kernels();
    return PyModule_AddIntConstant(module, "SOURCE", SIMDIST_SOURCE);
}

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void *>(fill)},
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "simdist._native", "The folds of collectives and what judges read, in C++.", 0, methods, slots,
    nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
