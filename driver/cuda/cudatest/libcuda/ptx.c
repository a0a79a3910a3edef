/* A parser of PTX text for a module's kernels, their parameters and its variables. */
#include "fake.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* token reads the next token of PTX into buf. It returns NULL at the end. Words may contain dots, signs, % and $. */
static const char *token(const char *p, char *buf, size_t size) {
	for (;;) {
		while (isspace((unsigned char)*p))
			p++;
		if (p[0] == '/' && p[1] == '/')
			while (*p && *p != '\n')
				p++;
		else if (p[0] == '/' && p[1] == '*') {
			const char *end = strstr(p + 2, "*/");
			p = end ? end + 2 : p + strlen(p);
		} else
			break;
	}
	if (!*p)
		return NULL;
	size_t n = 0;
	do {
		if (n + 1 < size)
			buf[n++] = *p;
		p++;
	} while (*p && (isalnum((unsigned char)*p) || strchr("._$%", *p)) && (isalnum((unsigned char)buf[n - 1]) || strchr("._$%", buf[n - 1])));
	buf[n] = 0;
	return p;
}

static size_t type_size(const char *t) {
	static const struct { const char *name; size_t size; } types[] = {
		{".b8", 1}, {".u8", 1}, {".s8", 1}, {".b16", 2}, {".u16", 2}, {".s16", 2}, {".f16", 2}, {".b32", 4}, {".u32", 4},
		{".s32", 4}, {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8},
	};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (strcmp(t, types[i].name) == 0)
			return types[i].size;
	return 0;
}

/* declaration reads "[.ptr] [.space] [.align n] .type name[[count]]" up to , ) ; or =. */
struct decl { char name[128], kind; size_t size, align; };
static const char *declaration(const char *p, struct decl *d, char *end) {
	char t[128];
	size_t elem = 0, count = 1, align = 0;
	memset(d, 0, sizeof *d);
	while ((p = token(p, t, sizeof t))) {
		if (strchr(",);={", t[0]) && !t[1]) {
			*end = t[0];
			d->size = elem * count;
			d->align = align ? align : elem;
			if (d->kind != 'b' && elem == 8 && d->kind != 'f')
				d->kind = 'p';
			return elem ? p : NULL;
		}
		if (strcmp(t, ".align") == 0) {
			size_t n;
			if (!(p = token(p, t, sizeof t)))
				return NULL;
			n = strtoul(t, NULL, 10);
			if (!elem) /* after the type it is the alignment of a pointer's target */
				align = n;
		} else if (type_size(t)) {
			elem = type_size(t);
			d->kind = t[1] == 'f' ? 'f' : 'i';
		} else if (t[0] == '[') {
			if (!(p = token(p, t, sizeof t)))
				return NULL;
			count = strtoul(t, NULL, 10);
			d->kind = 'b';
		} else if (t[0] != '.' && t[0] != ']' && !d->name[0]) {
			snprintf(d->name, sizeof d->name, "%.127s", t);
		}
	}
	return NULL;
}

static const char *entry(const char *p, struct module *m) {
	char t[128], end = ',';
	struct func *f = zalloc(sizeof *f);
	f->mod = m;
	f->max_threads = 1024;
	f->dynamic_limit = 49152;
	f->carveout = -1;
	if ((p = token(p, f->name, sizeof f->name)) && (p = token(p, t, sizeof t)) && t[0] == '(') {
		char peek[128];
		const char *q = token(p, peek, sizeof peek);
		if (q && peek[0] == ')')
			p = q, end = ')';
		while (p && end == ',' && f->nparams < 32) {
			struct decl d;
			if (!(p = declaration(p, &d, &end)))
				break;
			size_t off = (f->args_size + d.align - 1) / d.align * d.align;
			f->params[f->nparams++] = (struct param){off, d.size, d.kind};
			f->args_size = off + d.size;
		}
	}
	/* Directives between the parameters and the body. */
	while (p && t[0] != '{' && (p = token(p, t, sizeof t)))
		if (strcmp(t, ".maxntid") == 0 || strcmp(t, ".reqntid") == 0) {
			p = token(p, t, sizeof t);
			if (p)
				f->max_threads = atoi(t);
			t[0] = 0;
		}
	if (!p || end != ')') {
		free(f);
		return NULL;
	}
	f->next = m->funcs;
	m->funcs = f;
	f->self = obj_add(f, T_FUNC);
	return p;
}

/* ptx_parse reads the text into m, which the caller frees if it fails. */
CUresult ptx_parse(const char *p, struct module *m) {
	char t[128];
	int depth = 0;
	bool version = false, target = false;
	while ((p = token(p, t, sizeof t))) {
		version |= strcmp(t, ".version") == 0;
		target |= strcmp(t, ".target") == 0;
		if (t[0] == '{')
			depth++;
		else if (t[0] == '}')
			depth--;
		else if (strcmp(t, ".entry") == 0) {
			if (!version || !target || !(p = entry(p, m)))
				return INVALID_PTX;
			depth++;
		} else if (strcmp(t, ".global") == 0 && depth == 0) {
			struct decl d;
			char end;
			if (!(p = declaration(p, &d, &end)))
				return INVALID_PTX;
			struct global *g = zalloc(sizeof *g);
			memcpy(g->name, d.name, sizeof g->name);
			g->size = d.size;
			g->next = m->globals;
			m->globals = g;
			CUresult r = alloc_range(K_GLOBAL, d.size, m->ctx, &g->p);
			if (r)
				return r;
			memset(bytes_of(range_at(g->p), g->p), 0, d.size);
			live_add(LIVE_ALLOCATIONS, -1); /* counted as part of the module */
		}
	}
	return version && target && depth == 0 ? OK : INVALID_PTX;
}
