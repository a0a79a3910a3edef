/* Graphs: work that was recorded instead of executed, and can be executed repeatedly. */
#include "fake.h"

#include <stdlib.h>

struct graph *graph_new(void) {
	struct graph *g = zalloc(sizeof *g);
	g->self = obj_add(g, T_GRAPH);
	live_add(LIVE_GRAPHS, 1);
	return g;
}

void graph_append(struct graph *g, struct op *o) {
	o->node = obj_add(o, T_NODE);
	if (g->tail)
		g->tail->next = o;
	else
		g->head = o;
	g->tail = o;
	g->n++;
}

void graph_free(struct graph *g) {
	for (struct op *o = g->head, *next; o; o = next) {
		next = o->next;
		drop_op(o);
	}
	obj_del(g->self);
	live_add(LIVE_GRAPHS, -1);
	free(g);
}

static CUresult create(handle *out, unsigned flags) {
	if (!out || flags)
		return INVALID_VALUE;
	*out = graph_new()->self;
	return OK;
}
API(cuGraphCreate, (handle *out, unsigned flags), create(out, flags))

static CUresult destroy(handle h, enum type t) {
	struct graph *g = obj_get(h, t);
	if (!g)
		return INVALID_VALUE;
	if (t == T_EXEC)
		fault_exec(h);
	graph_free(g);
	return OK;
}
API_RELEASE(cuGraphDestroy, (handle h), destroy(h, T_GRAPH))
API_RELEASE(cuGraphExecDestroy, (handle h), destroy(h, T_EXEC))

static CUresult instantiate(handle *out, handle h) {
	struct ctx *c;
	CUresult r = current(&c);
	struct graph *g = obj_get(h, T_GRAPH);
	if (r)
		return r;
	if (!out || !g)
		return INVALID_VALUE;
	struct graph *x = graph_new();
	obj_del(x->self);
	x->self = obj_add(x, T_EXEC);
	for (struct op *o = g->head; o; o = o->next)
		graph_append(x, op_clone(o));
	*out = x->self;
	return OK;
}
API(cuGraphInstantiateWithFlags, (handle *out, handle h, uint64_t flags), flags & ~15ull ? INVALID_VALUE : instantiate(out, h))

static CUresult launch(handle h, handle sh) {
	struct graph *x = obj_get(h, T_EXEC);
	struct stream *s;
	if (!x)
		return INVALID_VALUE;
	CUresult r = stream_of(sh, &s);
	for (struct op *o = x->head; o && !r; o = o->next) {
		struct op *n = op_clone(o);
		n->exec = h;
		r = submit(s, n);
	}
	return r;
}
API(cuGraphLaunch, (handle h, handle s), launch(h, s))
API(cuGraphUpload, (handle h, handle s), ((void)s, obj_get(h, T_EXEC) ? OK : INVALID_VALUE))

static CUresult nodes(handle h, handle *out, size_t *n) {
	struct graph *g = obj_get(h, T_GRAPH);
	if (!g || !n)
		return INVALID_VALUE;
	size_t i = 0;
	for (struct op *o = g->head; o && out && i < *n; o = o->next)
		out[i++] = o->node;
	if (!out || *n > g->n)
		*n = g->n;
	return OK;
}
API(cuGraphGetNodes, (handle h, handle *out, size_t *n), nodes(h, out, n))

static CUresult node_type(handle h, int *out) {
	struct op *o = obj_get(h, T_NODE);
	if (!o || !out)
		return INVALID_VALUE;
	switch (o->kind) {
	case OP_LAUNCH: *out = 0; break;
	case OP_COPY: *out = 1; break;
	case OP_SET: *out = 2; break;
	case OP_HOST: *out = 3; break;
	case OP_WAIT: *out = 6; break;
	case OP_RECORD: *out = 7; break;
	case OP_FREE: *out = 11; break;
	case OP_WRITE_VALUE: case OP_WAIT_VALUE: *out = 12; break;
	default: *out = 5;
	}
	return OK;
}
API(cuGraphNodeGetType, (handle h, int *out), node_type(h, out))
