/* Launches, and the few supported kernels. The order of the parameters of one type determines their meaning. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

/* args are a launch's arguments by type, in the order of the parameters. */
struct args { devptr p[8]; int64_t i[8]; float f[8]; int np, ni, nf; };

/* A kernel returns false if an address is not valid on the device. */
struct job { const struct args *a; const struct op *o; struct ctx *c; uint64_t threads[3]; };

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

/* launchinfo(p): p[0..9] = grid, block, cluster in blocks and dynamic shared memory in bytes. */
static bool launchinfo(struct job *j) {
	uint32_t *p = (uint32_t *)at(j, j->a->p[0], 10, true);
	for (int i = 0; p && i < 3; i++) {
		p[i] = j->o->grid[i];
		p[3 + i] = j->o->block[i];
		p[6 + i] = j->o->cluster[i];
		p[9] = j->o->shared;
	}
	return p != NULL;
}

/* setcondition(handle, value): the function cudaGraphSetConditional of the device. */
static bool setcondition(struct job *j) {
	set_condition(j->a->p[0], (uint32_t)j->a->i[0]);
	return true;
}

/* countdown(p, handle): *p -= 1, and the value of a condition becomes *p. */
static bool countdown(struct job *j) {
	uint32_t *p = (uint32_t *)at(j, j->a->p[0], 1, true);
	if (p)
		set_condition(j->a->p[1], --*p);
	return p != NULL;
}

/* multimem_fill(p, value, n): p[i] = value in the memory of each device of a multicast object. */
static bool multimem_fill(struct job *j) {
	return multicast_fill(j->c, j->a->p[0], (uint32_t)j->a->i[0], least(j->threads[0], (uint64_t)j->a->i[1]));
}

static bool nothing(struct job *j) { return j != NULL; }
static bool trap(struct job *j) { return j == NULL; }

static const struct kernel { const char *name; bool (*run)(struct job *); int np, ni, nf; } kernels[] = {
	{"fill", fill, 1, 1, 0}, {"saxpy", saxpy, 2, 1, 1}, {"add", add, 3, 1, 0}, {"vecadd", add, 3, 1, 0}, {"scale", scale, 1, 1, 1},
	{"matmul", matmul, 3, 1, 0}, {"empty", nothing, 0, 0, 0}, {"noop", nothing, 0, 0, 0}, {"trap", trap, 0, 0, 0},
	{"launchinfo", launchinfo, 1, 0, 0},
	{"multimem_fill", multimem_fill, 1, 2, 0}, {"setcondition", setcondition, 1, 1, 0}, {"countdown", countdown, 2, 0, 0},
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
	struct job j = {.a = &a, .o = o, .c = o->ctx};
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

/* attributes applies the launch attributes to o and checks their values. Each kind may occur once. */
static CUresult attributes(struct op *o, const struct launch_config *c) {
	unsigned preferred[3] = {0};
	uint32_t seen = 0;
	for (unsigned i = 0; i < c->nattrs; i++) {
		const struct launch_attr *a = &c->attrs[i];
		if (a->id < 0 || a->id > 19 || (a->id && seen & 1u << a->id))
			return INVALID_VALUE;
		seen |= 1u << a->id;
		struct event *e;
		switch (a->id) {
		case 0: case 1: case 3: break;
		case 2: o->cooperative = a->v.i[0] != 0; break;
		case 4: memcpy(o->cluster, a->v.u, sizeof o->cluster); break;
		case 5: if (a->v.i[0] < 0 || a->v.i[0] > 2) return INVALID_VALUE; break;
		case 6: if (a->v.i[0] < 0 || a->v.i[0] > 1) return INVALID_VALUE; break;
		case 7: case 12: /* the event must not measure time and not be of another process */
			e = obj_get(a->v.h[0], T_EVENT);
			if (!e || !(e->flags & 2) || e->flags & 4 || e->foreign || a->v.i[2])
				return e ? INVALID_VALUE : INVALID_HANDLE;
			break;
		case 8: o->priority = a->v.i[0]; break;
		case 10: if (a->v.i[0] < 0 || a->v.i[0] > 1) return INVALID_VALUE; break;
		case 11: memcpy(preferred, a->v.u, sizeof preferred); break;
		case 14: if (a->v.u[0] > 100) return INVALID_VALUE; break;
		default: return NOT_SUPPORTED;
		}
	}
	uint64_t size = 1;
	if (seen & 1u << 4) {
		for (int i = 0; i < 3; i++) {
			if (!o->cluster[i] || o->grid[i] % o->cluster[i])
				return INVALID_CLUSTER_SIZE;
			size *= o->cluster[i];
		}
		if (size > (o->f->large_clusters ? 16 : 8))
			return INVALID_CLUSTER_SIZE;
	}
	if (seen & 1u << 11)
		for (int i = 0; i < 3; i++)
			if (!(seen & 1u << 4) || !preferred[i] || preferred[i] % o->cluster[i] || o->grid[i] % preferred[i])
				return INVALID_CLUSTER_SIZE;
	return OK;
}

/* launch_cluster returns the blocks of a cluster of the configuration, which must set its size. */
CUresult launch_cluster(const struct launch_config *c, struct func *f, unsigned *size) {
	struct op o = {.f = f};
	memcpy(o.grid, c->grid, sizeof o.grid);
	CUresult r = attributes(&o, c);
	*size = o.cluster[0] * o.cluster[1] * o.cluster[2];
	return r ? r : *size ? OK : INVALID_CLUSTER_SIZE;
}

/* completion records the events of the attributes. The stream's order is close enough to the start of the kernel. */
static CUresult completion(const struct launch_config *c, struct stream *s) {
	for (unsigned i = 0; i < c->nattrs; i++)
		if (c->attrs[i].id == 7 || c->attrs[i].id == 12) {
			CUresult r = event_record(obj_get(c->attrs[i].v.h[0], T_EVENT), s);
			if (r)
				return r;
		}
	return OK;
}

/* fits reports whether all blocks of a cooperative launch run at the same time on 8 multiprocessors. */
static bool fits(const struct op *o) {
	int blocks;
	uint64_t threads = (uint64_t)o->block[0] * o->block[1] * o->block[2];
	if (occupancy(&blocks, o->f->self, (int)threads, o->shared))
		return false;
	return (uint64_t)o->grid[0] * o->grid[1] * o->grid[2] <= (uint64_t)blocks * 8;
}

/* launch_op makes the operation of a launch in a context. */
CUresult launch_op(struct op **out, handle h, const struct launch_config *c, struct ctx *ctx, void **params, void **extra) {
	struct func *f = func_of(h);
	if (!f || f->mod->ctx != ctx)
		return INVALID_HANDLE;
	if (c->nattrs && !c->attrs)
		return INVALID_VALUE;
	uint64_t threads = 1;
	for (int i = 0; i < 3; i++) {
		if (!c->grid[i] || !c->block[i] || c->grid[i] > (i ? 65535u : 2147483647u) || c->block[i] > (i == 2 ? 64u : 1024u))
			return INVALID_VALUE;
		threads *= c->block[i];
	}
	if (threads > 1024 || c->shared > (unsigned)f->dynamic_limit)
		return INVALID_VALUE;
	if (threads > (uint64_t)f->max_threads)
		return LAUNCH_OUT_OF_RESOURCES;
	const struct kernel *k = find(f);
	struct op *o = op_new(OP_LAUNCH, ctx);
	struct args a;
	o->f = f;
	o->shared = c->shared;
	memcpy(o->grid, c->grid, sizeof o->grid);
	memcpy(o->block, c->block, sizeof o->block);
	o->cluster[0] = o->cluster[1] = o->cluster[2] = 1;
	CUresult r = attributes(o, c);
	if (!r && o->cooperative && !fits(o))
		r = COOPERATIVE_LAUNCH_TOO_LARGE;
	if (!r)
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
	*out = o;
	return OK;
}

/* node_attribute sets one attribute of a kernel node, or copies all of another node. Nodes have no events among them. */
static CUresult node_attribute(handle h, int id, const void *value) {
	struct op *o = obj_get(h, T_NODE);
	struct launch_attr a = {.id = id};
	if (!o || o->kind != OP_LAUNCH || !value || id == 7 || id == 12 || id == 6)
		return INVALID_VALUE;
	memcpy(&a.v, value, sizeof a.v);
	unsigned old[3];
	memcpy(old, o->cluster, sizeof old);
	CUresult r = attributes(o, &(const struct launch_config){.attrs = &a, .nattrs = 1});
	if (!r && o->cooperative && !fits(o))
		r = COOPERATIVE_LAUNCH_TOO_LARGE;
	if (r)
		memcpy(o->cluster, old, sizeof old);
	return r;
}
API(cuGraphKernelNodeSetAttribute, (handle h, int id, const void *value), node_attribute(h, id, value))

static CUresult get_attribute(handle h, int id, int *out) {
	struct op *o = obj_get(h, T_NODE);
	if (!o || o->kind != OP_LAUNCH || !out)
		return INVALID_VALUE;
	memset(out, 0, 64);
	switch (id) {
	case 2: out[0] = o->cooperative; return OK;
	case 4: memcpy(out, o->cluster, sizeof o->cluster); return OK;
	case 8: out[0] = o->priority; return OK;
	}
	return id >= 1 && id <= 14 ? OK : INVALID_VALUE;
}
API(cuGraphKernelNodeGetAttribute, (handle h, int id, int *out), get_attribute(h, id, out))

static CUresult launch(handle h, const struct launch_config *c, void **params, void **extra) {
	struct stream *s;
	struct op *o;
	if (!func_of(h))
		return INVALID_HANDLE;
	CUresult r = stream_of(c->stream, &s);
	if (!r)
		r = launch_op(&o, h, c, s->ctx, params, extra);
	if (!r)
		r = submit(s, o);
	return r ? r : completion(c, s);
}

#define CONFIG(attr, n) &(const struct launch_config){{gx, gy, gz}, {bx, by, bz}, shared, s, attr, n}
API(cuLaunchKernel, (handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, handle s,
	void **params, void **extra), launch(f, CONFIG(NULL, 0), params, extra))
static const struct launch_attr cooperative = {.id = 2, .v.i = {1}};
API(cuLaunchCooperativeKernel, (handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
	handle s, void **params), launch(f, CONFIG(&cooperative, 1), params, NULL))
API(cuLaunchKernelEx, (const struct launch_config *c, handle f, void **params, void **extra),
	c ? launch(f, c, params, extra) : INVALID_VALUE)
