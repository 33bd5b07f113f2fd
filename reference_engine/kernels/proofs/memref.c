/* The two things that code lowered from memrefs wants from a C library of its own. */
#include <stdint.h>
#include <string.h>

/* MLIR's unranked memref: a rank and {allocated, aligned, offset, sizes[rank], strides[rank]}. */
struct unranked {
    int64_t rank;
    int64_t *descriptor;
};

static void copy_dimension(int64_t size, int64_t rank, const int64_t *sizes, const int64_t *from_strides,
                           const int64_t *to_strides, const char *from, char *to) {
    if (rank == 0) {
        memcpy(to, from, (size_t)size);
        return;
    }
    for (int64_t i = 0; i < sizes[0]; i++)
        copy_dimension(size, rank - 1, sizes + 1, from_strides + 1, to_strides + 1, from + i * from_strides[0] * size,
                       to + i * to_strides[0] * size);
}

void memrefCopy(int64_t element_bytes, struct unranked *from, struct unranked *to) {
    const int64_t rank = from->rank, *source = from->descriptor, *target = to->descriptor;
    copy_dimension(element_bytes, rank, source + 3, source + 3 + rank, target + 3 + rank,
                   (const char *)source[1] + source[2] * element_bytes, (char *)target[1] + target[2] * element_bytes);
}

/* fp32 to bf16, which LLVM calls where the CPU has no instruction for it. A bf16 is returned in the low half of a
   floating-point register (x86-64 and AArch64 alike); compilers without the type say that with a float. */
float __truncsfbf2(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    memcpy(&value, &bits, 4);
    return value;
}
