/* Makes recorded calls (recording.py) with a library: replay LIBRARY TARGET CALLS RESULTS

   Each buffer is allocated with exactly its size, so that tools that watch memory see what is touched beside it. An empty
   TARGET stands for the build that the library chooses. RESULTS gets the content of all buffers after each call. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BUFFERS 64
#define MOST_ARGUMENTS 256

static void fail(const char *what) {
    fprintf(stderr, "replay: %s\n", what);
    exit(2);
}

static void read_bytes(FILE *file, void *to, size_t count) {
    if (count && fread(to, 1, count, file) != count) fail("the file of calls ends too early");
}

static int64_t read_number(FILE *file) {
    int64_t number;
    read_bytes(file, &number, sizeof number);
    return number;
}

static void read_text(FILE *file, char *to, int64_t most) {
    int64_t length = read_number(file);
    if (length >= most) fail("a name is too long");
    read_bytes(file, to, (size_t)length);
    to[length] = 0;
}

static void replay(void *library, const char *target, FILE *calls, FILE *results) {
    char name[64], number[16], symbol[160];
    int64_t structure[MOST_ARGUMENTS] = {0}, buffer_of[MOST_ARGUMENTS], offsets[MOST_ARGUMENTS], sizes[MOST_BUFFERS];
    char *buffers[MOST_BUFFERS];
    read_text(calls, name, sizeof name);
    read_text(calls, number, sizeof number);
    int64_t arguments = read_number(calls), count = read_number(calls);
    if (arguments > MOST_ARGUMENTS || count > MOST_BUFFERS) fail("a call is too large");
    for (int64_t i = 0; i < arguments; i++) {
        structure[i] = read_number(calls);
        buffer_of[i] = read_number(calls);
        offsets[i] = read_number(calls);
    }
    for (int64_t i = 0; i < count; i++) {
        sizes[i] = read_number(calls);
        buffers[i] = malloc((size_t)sizes[i]);
        if (!buffers[i]) fail("no memory");
        read_bytes(calls, buffers[i], (size_t)sizes[i]);
    }
    for (int64_t i = 0; i < arguments; i++)
        if (buffer_of[i] >= 0) structure[i] = (int64_t)(intptr_t)(buffers[buffer_of[i]] + offsets[i]);
    int64_t *exact = malloc((size_t)arguments * sizeof(int64_t));
    memcpy(exact, structure, (size_t)arguments * sizeof(int64_t));
    snprintf(symbol, sizeof symbol, "subquad_%s_%s_%s", name, target, number);
    int (*kernel)(void *) = (int (*)(void *))dlsym(library, symbol);
    if (!kernel) fail(symbol);
    if (kernel(exact) == 1) fail("a kernel found no memory");
    for (int64_t i = 0; i < count; i++) {
        fwrite(buffers[i], 1, (size_t)sizes[i], results);
        free(buffers[i]);
    }
    free(exact);
}

int main(int count, char **texts) {
    if (count != 5) fail("give LIBRARY TARGET CALLS RESULTS");
    void *library = dlopen(texts[1], RTLD_NOW);
    if (!library) fail(dlerror());
    const char *(*best)(void) = (const char *(*)(void))dlsym(library, "subquad_target");
    if (!best) fail("the library does not name its target");
    const char *target = texts[2][0] ? texts[2] : best();
    FILE *calls = fopen(texts[3], "rb"), *results = fopen(texts[4], "wb");
    if (!calls || !results) fail("a file cannot be opened");
    for (int64_t left = read_number(calls); left > 0; left--) replay(library, target, calls, results);
    if (fclose(results)) fail("the results cannot be written");
    fclose(calls);
    puts(target);
    return 0;
}
