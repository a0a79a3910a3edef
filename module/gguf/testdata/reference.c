// Converts blocks with ggml's C code, for reference_test.go.
//
//   reference convert NUMBER BLOCK_BYTES BLOCK_ELEMENTS   blocks on the standard input, floats on the standard output
//   reference bench NUMBER BLOCK_BYTES ELEMENTS ROUNDS    converts random blocks, and prints the nanoseconds of a round
//
// NUMBER is a ggml_type. It is compiled with ggml's include and src folders and src/ggml-quants.c.

#define GGML_COMMON_DECL_C
#include "ggml-common.h"
#include "ggml-quants.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void (*convert_fn)(const void *blocks, float *values, int64_t elements);

static convert_fn functions[GGML_TYPE_COUNT] = {
#define ENTRY(type, name) [GGML_TYPE_##type] = (convert_fn) dequantize_row_##name
    ENTRY(Q1_0, q1_0), ENTRY(Q2_0, q2_0), ENTRY(Q4_0, q4_0), ENTRY(Q4_1, q4_1), ENTRY(Q5_0, q5_0), ENTRY(Q5_1, q5_1),
    ENTRY(Q8_0, q8_0), ENTRY(Q2_K, q2_K), ENTRY(Q3_K, q3_K), ENTRY(Q4_K, q4_K), ENTRY(Q5_K, q5_K), ENTRY(Q6_K, q6_K),
    ENTRY(Q8_K, q8_K), ENTRY(IQ1_S, iq1_s), ENTRY(IQ1_M, iq1_m), ENTRY(IQ2_XXS, iq2_xxs), ENTRY(IQ2_XS, iq2_xs),
    ENTRY(IQ2_S, iq2_s), ENTRY(IQ3_XXS, iq3_xxs), ENTRY(IQ3_S, iq3_s), ENTRY(IQ4_NL, iq4_nl), ENTRY(IQ4_XS, iq4_xs),
    ENTRY(TQ1_0, tq1_0), ENTRY(TQ2_0, tq2_0), ENTRY(MXFP4, mxfp4), ENTRY(NVFP4, nvfp4),
};

static int convert(convert_fn fn, size_t bytes, int64_t elements) {
    void *block = malloc(bytes);
    float *values = malloc(elements * sizeof(float));
    while (fread(block, bytes, 1, stdin) == 1) {
        fn(block, values, elements);
        fwrite(values, sizeof(float), elements, stdout);
    }
    return fflush(stdout) != 0;
}

static int bench(convert_fn fn, size_t bytes, int64_t elements, long rounds) {
    unsigned char *blocks = malloc(bytes);
    float *values = malloc(elements * sizeof(float));
    for (size_t i = 0; i < bytes; i++) {
        blocks[i] = rand() & 0x3B; // halves are finite
    }
    fn(blocks, values, elements);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < rounds; i++) {
        fn(blocks, values, elements);
        __asm__ volatile("" ::: "memory");
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.1f\n", ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / rounds);
    return 0;
}

int main(int argc, char **argv) {
    long number = argc > 4 ? atol(argv[2]) : -1;
    if (number < 0 || number >= GGML_TYPE_COUNT || !functions[number]) {
        fprintf(stderr, "no conversion\n");
        return 2;
    }
    if (argc > 5 && strcmp(argv[1], "bench") == 0) {
        return bench(functions[number], atol(argv[3]), atol(argv[4]), atol(argv[5]));
    }
    return convert(functions[number], atol(argv[3]), atol(argv[4]));
}
