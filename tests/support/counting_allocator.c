/* Counts the bytes that malloc and its relatives have given out, and can refuse beyond a budget.
 *
 * Loaded with LD_PRELOAD; counting_allocator.py compiles it and reads it. Sizes are those that glibc has set aside
 * (malloc_usable_size), so that memory needs no header of ours, and what was allocated before is freed rightly.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static _Atomic long long current, peak, refused;
static _Atomic long long budget; /* 0: none */

/* Small requests are never refused: Python and C++ need them to report what happened. */
#define ALWAYS_GIVEN (1 << 16)

static int too_much(size_t bytes)
{
    long long most = atomic_load_explicit(&budget, memory_order_relaxed);
    if (most == 0 || bytes < ALWAYS_GIVEN || atomic_load_explicit(&current, memory_order_relaxed) + (long long)bytes <= most)
        return 0;
    atomic_fetch_add(&refused, 1);
    errno = ENOMEM;
    return 1;
}

static void *given(void *memory)
{
    if (memory) {
        long long size = (long long)malloc_usable_size(memory);
        long long now = atomic_fetch_add_explicit(&current, size, memory_order_relaxed) + size;
        long long most = atomic_load_explicit(&peak, memory_order_relaxed);
        while (now > most && !atomic_compare_exchange_weak(&peak, &most, now))
            ;
    }
    return memory;
}

static void taken(void *memory)
{
    if (memory)
        atomic_fetch_sub_explicit(&current, (long long)malloc_usable_size(memory), memory_order_relaxed);
}

void *malloc(size_t bytes) { return too_much(bytes) ? NULL : given(__libc_malloc(bytes)); }

void *calloc(size_t count, size_t each)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, each, &bytes) || too_much(bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return given(__libc_calloc(count, each));
}

void *realloc(void *memory, size_t bytes)
{
    size_t before = memory ? malloc_usable_size(memory) : 0;
    if (bytes > before && too_much(bytes - before))
        return NULL;
    taken(memory);
    void *found = __libc_realloc(memory, bytes);
    if (!found && bytes) { /* the old memory is still there */
        atomic_fetch_add(&current, (long long)before);
        return NULL;
    }
    return given(found);
}

void *memalign(size_t alignment, size_t bytes)
{
    return too_much(bytes) ? NULL : given(__libc_memalign(alignment, bytes));
}

void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void **into, size_t alignment, size_t bytes)
{
    if (alignment % sizeof(void *) || (alignment & (alignment - 1)) || !alignment)
        return EINVAL;
    int before = errno;
    void *found = memalign(alignment, bytes);
    errno = before; /* posix_memalign leaves errno alone */
    if (!found)
        return ENOMEM;
    *into = found;
    return 0;
}

void *valloc(size_t bytes) { return memalign((size_t)sysconf(_SC_PAGESIZE), bytes); }

void *pvalloc(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return memalign(page, (bytes + page - 1) / page * page);
}

void free(void *memory)
{
    int before = errno;
    taken(memory);
    __libc_free(memory);
    errno = before;
}

long long counting_allocator_current(void) { return atomic_load(&current); }
long long counting_allocator_peak(void) { return atomic_load(&peak); }
long long counting_allocator_refused(void) { return atomic_load(&refused); }
void counting_allocator_reset(void) { atomic_store(&peak, atomic_load(&current)); }
void counting_allocator_budget(long long bytes) { atomic_store(&budget, bytes); }
