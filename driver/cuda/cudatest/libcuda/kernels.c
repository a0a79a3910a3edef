/* Launches, and the few supported kernels. The order of the parameters of one type determines their meaning. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

/* args are a launch's arguments by type, in the order of the parameters. */
struct args { devptr p[8]; int64_t i[8]; float f[8]; int np, ni, nf; };

/* A kernel returns false if an address is not valid on the device. */
struct job { const struct args *a; struct ctx *c; uint64_t threads[3]; };

static float *at(struct job *j, devptr p, uint64_t count, bool write) {
	if (count > SIZE_MAX / 4 || check_device(j->c, p, count * 4, write, true))
		return NULL;
	struct range *r = range_at(p);
	return r && p + count * 4 <= r->base + r->size ? (float *)bytes_of(r, p) : NULL;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* fill(p, value, n): p[i] = value, of 4 bytes. */
static bool fill(struct job *j) {
	uint64_t n = least(j->threads[0], (uint64_t)j->a->i[j->a->ni - 1]);
	uint32_t value = (uint32_t)j->a->i[0];
	if (j->a->nf)
		memcpy(&value, &j->a->f[0], 4);
	float *p = at(j, j->a->p[0], n, true);
	for (uint64_t i = 0; p && i < n; i++)
		memcpy(p + i, &value, 4);
	return p != NULL;
}

/* saxpy(a, x, y[, out], n): out = a*x + y, or y = a*x + y without out. */
static bool saxpy(struct job *j) {
	uint64_t n = least(j->threads[0], (uint64_t)j->a->i[0]);
	float *x = at(j, j->a->p[0], n, false), *y = at(j, j->a->p[1], n, j->a->np == 2), *out = j->a->np > 2 ? at(j, j->a->p[2], n, true) : y;
	for (uint64_t i = 0; x && y && out && i < n; i++)
		out[i] = __builtin_fmaf(j->a->f[0], x[i], y[i]);
	return x && y && out;
}

/* add(x, y, out, n). */
static bool add(struct job *j) {
	uint64_t n = least(j->threads[0], (uint64_t)j->a->i[0]);
	float *x = at(j, j->a->p[0], n, false), *y = at(j, j->a->p[1], n, false), *out = at(j, j->a->p[2], n, true);
	for (uint64_t i = 0; x && y && out && i < n; i++)
		out[i] = x[i] + y[i];
	return x && y && out;
}

/* scale(p, a, n): p[i] *= a. */
static bool scale(struct job *j) {
	uint64_t n = least(j->threads[0], (uint64_t)j->a->i[0]);
	float *p = at(j, j->a->p[0], n, true);
	for (uint64_t i = 0; p && i < n; i++)
		p[i] *= j->a->f[0];
	return p != NULL;
}

/* matmul(a, b, c, m, n, k): c = a*b, with m rows and n columns in row-major order. A single number is used for all three. A thread
 * computes one element: x is its column, y its row. */
static bool matmul(struct job *j) {
	uint64_t m = (uint64_t)j->a->i[0], n = j->a->ni > 2 ? (uint64_t)j->a->i[1] : m, k = j->a->ni > 2 ? (uint64_t)j->a->i[2] : m;
	float *a = at(j, j->a->p[0], m * k, false), *b = at(j, j->a->p[1], k * n, false), *c = at(j, j->a->p[2], m * n, true);
	if (!a || !b || !c)
		return false;
	for (uint64_t row = 0; row < least(m, j->threads[1]); row++)
		for (uint64_t col = 0; col < least(n, j->threads[0]); col++) {
			float sum = 0;
			for (uint64_t i = 0; i < k; i++)
				sum = __builtin_fmaf(a[row * k + i], b[i * n + col], sum);
			c[row * n + col] = sum;
		}
	return true;
}

static bool nothing(struct job *j) { return j != NULL; }
static bool trap(struct job *j) { return j == NULL; }

static const struct kernel { const char *name; bool (*run)(struct job *); int np, ni, nf; } kernels[] = {
	{"fill", fill, 1, 1, 0}, {"saxpy", saxpy, 2, 1, 1}, {"add", add, 3, 1, 0}, {"vecadd", add, 3, 1, 0}, {"scale", scale, 1, 1, 1},
	{"matmul", matmul, 3, 1, 0}, {"empty", nothing, 0, 0, 0}, {"noop", nothing, 0, 0, 0}, {"trap", trap, 0, 0, 0},
};

/* find looks up a kernel by its name, which may be mangled (_Z4filPjji). */
static const struct kernel *find(const struct func *f) {
	const char *name = f->name;
	unsigned n = (unsigned)strlen(name);
	if (strncmp(name, "_Z", 2) == 0) {
		char *end;
		n = (unsigned)strtoul(name + 2, &end, 10);
		name = end;
	}
	for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
		if (strlen(kernels[i].name) == n && strncmp(kernels[i].name, name, n) == 0)
			return &kernels[i];
	return NULL;
}

static void sort_args(const struct op *o, struct args *a) {
	memset(a, 0, sizeof *a);
	for (int i = 0; i < o->f->nparams; i++) {
		const struct param *p = &o->f->params[i];
		const uint8_t *v = o->args + p->off;
		int32_t small;
		if (p->type == 'p' && a->np < 8) {
			memcpy(&a->p[a->np++], v, 8);
		} else if (p->type == 'f' && p->size == 4 && a->nf < 8) {
			memcpy(&a->f[a->nf++], v, 4);
		} else if (p->type == 'i' && p->size == 4 && a->ni < 8) {
			memcpy(&small, v, 4);
			a->i[a->ni++] = (uint32_t)small;
		}
	}
}

CUresult run_kernel(struct op *o) {
	const struct kernel *k = find(o->f);
	struct args a;
	if (!o->f->mod) /* unloaded after the graph was made */
		return 719;
	sort_args(o, &a);
	struct job j = {.a = &a, .c = o->ctx};
	for (int i = 0; i < 3; i++)
		j.threads[i] = (uint64_t)o->grid[i] * o->block[i];
	return k->run(&j) ? OK : ILLEGAL_ADDRESS;
}

/* pack copies the arguments, from one pointer for each or from a buffer of exactly their size. */
static CUresult pack(struct op *o, void **params, void **extra) {
	const struct func *f = o->f;
	o->args = zalloc(f->args_size);
	if (params && extra)
		return INVALID_VALUE;
	if (f->nparams == 0 && !extra)
		return OK;
	if (params) {
		for (int i = 0; i < f->nparams; i++) {
			if (!params[i])
				return INVALID_VALUE;
			memcpy(o->args + f->params[i].off, params[i], f->params[i].size);
		}
		return OK;
	}
	void *buffer = NULL;
	size_t size = 0;
	for (int i = 0; extra && extra[i]; i += 2) {
		if (extra[i] == (void *)1)
			buffer = extra[i + 1];
		else if (extra[i] == (void *)2)
			size = *(size_t *)extra[i + 1];
		else
			return INVALID_VALUE;
	}
	if (!buffer || size != f->args_size)
		return INVALID_VALUE;
	memcpy(o->args, buffer, size);
	return OK;
}

static CUresult launch(handle h, const unsigned grid[3], const unsigned block[3], unsigned shared, handle sh, void **params, void **extra) {
	struct func *f = obj_get(h, T_FUNC);
	struct stream *s;
	if (!f)
		return INVALID_HANDLE;
	CUresult r = stream_of(sh, &s);
	if (r)
		return r;
	if (f->mod->ctx != s->ctx)
		return INVALID_HANDLE;
	uint64_t threads = 1;
	for (int i = 0; i < 3; i++) {
		if (!grid[i] || !block[i] || grid[i] > (i ? 65535u : 2147483647u) || block[i] > (i == 2 ? 64u : 1024u))
			return INVALID_VALUE;
		threads *= block[i];
	}
	if (threads > 1024 || shared > 232448)
		return INVALID_VALUE;
	if (threads > (uint64_t)f->max_threads)
		return LAUNCH_OUT_OF_RESOURCES;
	const struct kernel *k = find(f);
	struct op *o = op_new(OP_LAUNCH, s->ctx);
	struct args a;
	o->f = f;
	o->shared = shared;
	memcpy(o->grid, grid, sizeof o->grid);
	memcpy(o->block, block, sizeof o->block);
	r = f->nparams < 0 ? NOT_SUPPORTED : pack(o, params, extra);
	if (!r) {
		sort_args(o, &a);
		if (!k || a.np < k->np || a.ni < k->ni || a.nf < k->nf)
			r = NOT_SUPPORTED; /* this library does not support the kernel */
	}
	if (r) {
		drop_op(o);
		return r;
	}
	return submit(s, o);
}

#define DIMS (const unsigned[]){gx, gy, gz}, (const unsigned[]){bx, by, bz}
API(cuLaunchKernel, (handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, handle s,
	void **params, void **extra), launch(f, DIMS, shared, s, params, extra))
API(cuLaunchCooperativeKernel, (handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
	handle s, void **params), launch(f, DIMS, shared, s, params, NULL))

struct launch_config { unsigned grid[3], block[3], shared; handle stream; void *attrs; unsigned nattrs; };
API(cuLaunchKernelEx, (const struct launch_config *c, handle f, void **params, void **extra),
	c ? launch(f, c->grid, c->block, c->shared, c->stream, params, extra) : INVALID_VALUE)
