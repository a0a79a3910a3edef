/* Occupancy: how many blocks run on a multiprocessor at a time. */
#include "fake.h"

enum { SMS = 8, SHARED = 233472, RESERVED = 1024, MAX_BLOCKS = 32, MAX_THREADS = 2048 };

CUresult occupancy(int *blocks, handle h, int threads, size_t shared) {
	struct func *f = func_of(h);
	if (!f)
		return INVALID_HANDLE;
	if (!blocks || threads <= 0)
		return INVALID_VALUE;
	int n = threads > f->max_threads ? 0 : MAX_THREADS / ((threads + 31) / 32 * 32);
	if (n > MAX_BLOCKS)
		n = MAX_BLOCKS;
	if (shared && (size_t)n > SHARED / (shared + RESERVED))
		n = (int)(SHARED / (shared + RESERVED));
	*blocks = n;
	return OK;
}
API(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *n, handle h, int threads, size_t shared), occupancy(n, h, threads, shared))
API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (int *n, handle h, int threads, size_t shared, unsigned flags),
	flags > 1 ? INVALID_VALUE : occupancy(n, h, threads, shared))

/* best_block calls size, a function of the program, without the lock. */
static CUresult best_block(int *grid, int *block, handle h, size_t (*size)(int), size_t shared, int limit) {
	struct func *f = func_of(h);
	if (!f)
		return INVALID_HANDLE;
	if (!grid || !block || limit < 0)
		return INVALID_VALUE;
	int best = limit && limit < f->max_threads ? limit : f->max_threads, n = 0;
	if (best >= 32)
		best -= best % 32;
	for (; best > 0; best -= 32) {
		size_t bytes = shared;
		if (size) {
			pthread_mutex_unlock(&big);
			in_callback = true;
			bytes = size(best);
			in_callback = false;
			pthread_mutex_lock(&big);
		}
		CUresult r = occupancy(&n, h, best, bytes);
		if (r)
			return r;
		if (n)
			break;
	}
	*block = best;
	*grid = n * SMS;
	return n ? OK : INVALID_VALUE;
}
API(cuOccupancyMaxPotentialBlockSize, (int *grid, int *block, handle h, size_t (*size)(int), size_t shared, int limit),
	best_block(grid, block, h, size, shared, limit))
API(cuOccupancyMaxPotentialBlockSizeWithFlags, (int *grid, int *block, handle h, size_t (*size)(int), size_t shared, int limit, unsigned flags),
	flags > 1 ? INVALID_VALUE : best_block(grid, block, h, size, shared, limit))

/* available is the opposite question: the shared memory with which the given number of blocks runs. */
static CUresult available(size_t *out, handle h, int blocks, int threads) {
	int most;
	CUresult r = occupancy(&most, h, threads, 0);
	if (r)
		return r;
	if (!out || blocks <= 0 || blocks > most)
		return INVALID_VALUE;
	*out = SHARED / (size_t)blocks - RESERVED;
	return OK;
}
API(cuOccupancyAvailableDynamicSMemPerBlock, (size_t *out, handle h, int blocks, int threads), available(out, h, blocks, threads))

static CUresult cluster(int *out, handle h, const struct launch_config *c, bool count) {
	struct func *f = func_of(h);
	struct ctx *now;
	unsigned size;
	int blocks;
	CUresult r = current(&now); /* the stream of the configuration may be that of the context */
	if (r)
		return r;
	if (!f)
		return INVALID_HANDLE;
	if (!out || !c)
		return INVALID_VALUE;
	r = occupancy(&blocks, h, (int)(c->block[0] * c->block[1] * c->block[2]), c->shared);
	if (r)
		return r;
	if (!count)
		return *out = blocks ? (f->large_clusters ? 16 : 8) : 0, OK;
	if ((r = launch_cluster(c, f, &size)))
		return r;
	*out = blocks * SMS / (int)size;
	return OK;
}
API(cuOccupancyMaxPotentialClusterSize, (int *out, handle h, const struct launch_config *c), cluster(out, h, c, false))
API(cuOccupancyMaxActiveClusters, (int *out, handle h, const struct launch_config *c), cluster(out, h, c, true))
