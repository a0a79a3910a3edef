/* Modules: PTX text (also inside a fatbin) and cubins, and the attributes of their functions. */
#define _GNU_SOURCE
#include "fake.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


/* cubin reads the kernels' names from the sections .text.NAME. Their parameters are unknown. */
static CUresult cubin(const unsigned char *image, struct module *m) {
	const Elf64_Ehdr *h = (const void *)image;
	if (h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_machine != 190 || h->e_shentsize != sizeof(Elf64_Shdr))
		return INVALID_IMAGE;
	const Elf64_Shdr *s = (const void *)(image + h->e_shoff);
	const char *names = (const char *)image + s[h->e_shstrndx].sh_offset;
	for (int i = 0; i < h->e_shnum; i++)
		if (strncmp(names + s[i].sh_name, ".text.", 6) == 0) {
			struct func *f = zalloc(sizeof *f);
			*f = (struct func){.mod = m, .max_threads = 1024, .nparams = -1, .next = m->funcs};
			snprintf(f->name, sizeof f->name, "%s", names + s[i].sh_name + 6);
			f->self = obj_add(f, T_FUNC);
			m->funcs = f;
		}
	return OK;
}

static CUresult fatbin(const unsigned char *image, struct module *m) {
	struct { uint32_t magic; uint16_t version, header; uint64_t size; } h;
	memcpy(&h, image, sizeof h);
	const char *at = memmem(image + h.header, h.size, ".version", 8), *end = (const char *)image + h.header + h.size;
	if (!at)
		return 209; /* no binary for this GPU */
	char *text = zalloc((size_t)(end - at) + 1);
	memcpy(text, at, (size_t)(end - at));
	CUresult r = ptx_parse(text, m);
	free(text);
	return r;
}

static void module_free(struct module *m) {
	/* The functions' records are kept because a graph may still point to them. */
	for (struct func *f = m->funcs; f; f = f->next) {
		obj_del(f->self);
		f->mod = NULL;
	}
	for (struct global *g = m->globals, *next; g; g = next) {
		next = g->next;
		struct range *r = g->p ? range_at(g->p) : NULL;
		if (r) {
			live_add(LIVE_ALLOCATIONS, 1);
			range_free(r);
		}
		free(g);
	}
	free(m);
}

static CUresult load(handle *out, const void *image) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!out || !image)
		return INVALID_VALUE;
	struct module *m = zalloc(sizeof *m);
	m->ctx = c;
	const unsigned char *b = image;
	uint32_t magic;
	memcpy(&magic, b, b[0] && b[1] && b[2] ? 4 : 1);
	if (b[0] == 0x7f && b[1] == 'E')
		r = cubin(b, m);
	else if (b[0] == 0x50 && b[1] == 0xed && magic == 0xba55ed50)
		r = fatbin(b, m);
	else if (isprint(b[0]) || isspace(b[0]))
		r = ptx_parse(image, m);
	else
		r = INVALID_IMAGE;
	if (r) {
		module_free(m);
		return r;
	}
	live_add(LIVE_MODULES, 1);
	*out = m->self = obj_add(m, T_MODULE);
	return OK;
}
API(cuModuleLoadData, (handle *out, const void *image), load(out, image))
API(cuModuleLoadFatBinary, (handle *out, const void *image), load(out, image))

/* load_ex writes a message to the error log (options 5 and 6) if it refuses the text, like the compiler. */
static CUresult load_ex(handle *out, const void *image, unsigned n, const int *options, void **values) {
	if (n && (!options || !values))
		return INVALID_VALUE;
	CUresult r = load(out, image);
	char *log = NULL;
	size_t size = 0;
	for (unsigned i = 0; i < n; i++) {
		if (options[i] == 5)
			log = values[i];
		if (options[i] == 6)
			size = (unsigned)(uintptr_t)values[i];
	}
	if (log && size)
		snprintf(log, size, "%s", r ? "ptxas fatal   : syntax error" : "");
	return r;
}
API(cuModuleLoadDataEx, (handle *out, const void *image, unsigned n, int *options, void **values), load_ex(out, image, n, options, values))

static CUresult unload(handle h) {
	struct module *m = obj_get(h, T_MODULE);
	struct ctx *c;
	CUresult r = current(&c);
	if (r && r != ILLEGAL_ADDRESS)
		return r;
	if (!m)
		return INVALID_HANDLE;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	obj_del(h);
	live_add(LIVE_MODULES, -1);
	module_free(m);
	return OK;
}
API_RELEASE(cuModuleUnload, (handle h), unload(h))

static CUresult get_function(handle *out, handle h, const char *name) {
	struct module *m = obj_get(h, T_MODULE);
	if (!m)
		return INVALID_HANDLE;
	if (!out || !name)
		return INVALID_VALUE;
	for (struct func *f = m->funcs; f; f = f->next)
		if (strcmp(f->name, name) == 0)
			return *out = f->self, OK;
	return NOT_FOUND;
}
API(cuModuleGetFunction, (handle *out, handle h, const char *name), get_function(out, h, name))

static CUresult get_global(devptr *p, size_t *size, handle h, const char *name) {
	struct module *m = obj_get(h, T_MODULE);
	if (!m)
		return INVALID_HANDLE;
	if (!name)
		return INVALID_VALUE;
	for (struct global *g = m->globals; g; g = g->next)
		if (strcmp(g->name, name) == 0) {
			if (p)
				*p = g->p;
			if (size)
				*size = g->size;
			return OK;
		}
	return NOT_FOUND;
}
API(cuModuleGetGlobal_v2, (devptr *p, size_t *size, handle h, const char *name), get_global(p, size, h, name))

static CUresult count(unsigned *n, handle *out, handle h) {
	struct module *m = obj_get(h, T_MODULE);
	if (!m)
		return INVALID_HANDLE;
	unsigned i = 0;
	for (struct func *f = m->funcs; f; f = f->next, i++)
		if (out && i < *n)
			out[i] = f->self;
	*n = i;
	return OK;
}
API(cuModuleGetFunctionCount, (unsigned *n, handle h), n ? count(n, NULL, h) : INVALID_VALUE)
API(cuModuleEnumerateFunctions, (handle *out, unsigned n, handle h), out ? count(&n, out, h) : INVALID_VALUE)

static CUresult func_name(const char **out, handle h) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	return out ? (*out = f->name, OK) : INVALID_VALUE;
}
API(cuFuncGetName, (const char **out, handle h), func_name(out, h))

static CUresult func_module(handle *out, handle h) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	return out ? (*out = f->mod->self, OK) : INVALID_VALUE;
}
API(cuFuncGetModule, (handle *out, handle h), func_module(out, h))

static CUresult param_info(handle h, size_t i, size_t *off, size_t *size) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	if (f->nparams < 0)
		return NOT_SUPPORTED;
	if (!off || i >= (size_t)f->nparams)
		return INVALID_VALUE;
	*off = f->params[i].off;
	if (size)
		*size = f->params[i].size;
	return OK;
}
API(cuFuncGetParamInfo, (handle h, size_t i, size_t *off, size_t *size), param_info(h, i, off, size))
#ifndef FAKECUDA_OLD
static CUresult param_count(handle h, size_t *n) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	return n && f->nparams >= 0 ? (*n = (size_t)f->nparams, OK) : INVALID_VALUE;
}
API(cuFuncGetParamCount, (handle h, size_t *n), param_count(h, n))
#endif

static CUresult func_attribute(int *out, int attr, handle h) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	if (!out || attr < 0 || attr > 17)
		return INVALID_VALUE;
	*out = attr == 0 ? f->max_threads : attr == 4 ? 32 : attr == 5 || attr == 6 ? 90 : attr == 8 ? 49152 : 0;
	return OK;
}
API(cuFuncGetAttribute, (int *out, int attr, handle h), func_attribute(out, attr, h))

static CUresult func_set(handle h, int attr, int v) {
	if (!obj_get(h, T_FUNC))
		return INVALID_HANDLE;
	return (attr == 8 && v >= 0 && v <= 232448) || attr == 9 ? OK : INVALID_VALUE;
}
API(cuFuncSetAttribute, (handle h, int attr, int v), func_set(h, attr, v))

static CUresult occupancy(int *blocks, handle h, int threads, size_t shared) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	if (!blocks || threads <= 0)
		return INVALID_VALUE;
	int n = threads > f->max_threads ? 0 : 2048 / ((threads + 31) / 32 * 32);
	if (n > 32)
		n = 32;
	if (shared && (size_t)n > 233472 / (shared + 1024))
		n = (int)(233472 / (shared + 1024));
	*blocks = n;
	return OK;
}
API(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *n, handle h, int threads, size_t shared), occupancy(n, h, threads, shared))

static CUresult best_block(int *grid, int *block, handle h, size_t (*size)(int), size_t shared, int limit) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	if (!grid || !block || limit < 0)
		return INVALID_VALUE;
	int best = limit && limit < f->max_threads ? limit : f->max_threads, n = 0;
	if (best >= 32)
		best -= best % 32;
	for (; best > 0; best -= 32) {
		occupancy(&n, h, best, size ? size(best) : shared);
		if (n)
			break;
	}
	*block = best;
	*grid = n * 8;
	return n ? OK : INVALID_VALUE;
}
API(cuOccupancyMaxPotentialBlockSize, (int *grid, int *block, handle h, size_t (*size)(int), size_t shared, int limit),
    best_block(grid, block, h, size, shared, limit))
