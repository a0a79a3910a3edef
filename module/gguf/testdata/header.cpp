// Prints for each file 1 if ggml accepts its header, otherwise 0. reference_test.go compiles it with ggml's sources.

#include "ggml.h"
#include "gguf.h"
#include <cstdio>

int main(int argc, char **argv) {
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    for (int i = 1; i < argc; i++) {
        gguf_context *file = gguf_init_from_file(argv[i], {/*no_alloc=*/true, /*ctx=*/nullptr});
        printf("%d\n", file != nullptr);
        if (file != nullptr) {
            gguf_free(file);
        }
    }
}
