/* Graphs: work that was recorded instead of executed, its order, and copies of graphs. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

struct graph *graph_new(void) {
	struct graph *g = zalloc(sizeof *g);
	g->self = obj_add(g, T_GRAPH);
	live_add(LIVE_GRAPHS, 1);
	return g;
}

/* plain_edges reports whether the data of edges, 8 bytes each, says nothing but "after". */
bool plain_edges(const void *data, size_t n) {
	const uint8_t *b = data;
	for (size_t i = 0; b && i < 8 * n; i++)
		if (b[i])
			return false;
	return true;
}

/* list_set replaces the contents of a list. */
void list_set(struct op ***list, int *n, struct op **from, int count) {
	struct op **copy = zalloc((size_t)count * sizeof *copy);
	if (count)
		memcpy(copy, from, (size_t)count * sizeof *copy);
	free(*list);
	*list = copy;
	*n = count;
}

/* list_add adds a node that the list does not contain yet. */
void list_add(struct op ***list, int *n, struct op *o) {
	for (int i = 0; i < *n; i++)
		if ((*list)[i] == o)
			return;
	*list = realloc(*list, (size_t)(*n + 1) * sizeof **list);
	if (!*list)
		abort();
	(*list)[(*n)++] = o;
}

void graph_append(struct graph *g, struct op *o, struct op **preds, int npreds) {
	o->node = obj_add(o, T_NODE);
	o->owner = g;
	o->id = g->ids++;
	list_set(&o->preds, &o->npreds, preds, npreds);
	if (g->tail)
		g->tail->next = o;
	else
		g->head = o;
	g->tail = o;
	g->n++;
}

static void condition_put(struct condition *c) {
	if (--c->refs == 0) {
		obj_del(c->self);
		free(c);
	}
}

void graph_free(struct graph *g) {
	for (struct op *o = g->head, *next; o; o = next) {
		next = o->next;
		drop_op(o);
	}
	for (int i = 0; i < g->nconditions; i++)
		condition_put(g->conditions[i]);
	for (int i = 0; i < g->nheld; i++)
		user_drop(g->held[i].u, g->held[i].n);
	obj_del(g->self);
	if (!g->inner)
		live_add(LIVE_GRAPHS, -1);
	free(g);
}

/* visit appends the node and, before it, those that it depends on. It returns false if they form a cycle. */
static bool visit(struct op *o, struct op **order, int *n) {
	if (o->mark == 2)
		return true;
	if (o->mark == 1)
		return false;
	o->mark = 1;
	for (int i = 0; i < o->npreds; i++)
		if (!visit(o->preds[i], order, n))
			return false;
	o->mark = 2;
	order[(*n)++] = o;
	return true;
}

/* sorted returns the nodes in an order that respects the dependencies, which the caller frees, or NULL if there is a cycle. */
static struct op **sorted(struct graph *g) {
	struct op **order = zalloc(g->n * sizeof *order);
	int n = 0;
	for (struct op *o = g->head; o; o = o->next)
		o->mark = 0;
	for (struct op *o = g->head; o; o = o->next)
		if (!visit(o, order, &n)) {
			free(order);
			return NULL;
		}
	return order;
}

static struct graph *inner_copy(struct graph *g, bool exec, CUresult *r) {
	struct graph *c = graph_copy(g, exec, r);
	if (c) {
		c->inner = true;
		live_add(LIVE_GRAPHS, -1);
	}
	return c;
}

/* copy_node copies a node to x. A child graph is flattened if x is executable. */
static CUresult copy_node(struct graph *x, struct op *o, bool exec) {
	CUresult r = OK;
	if (exec && o->kind == OP_CHILD) {
		struct op **order = sorted(o->child[0]);
		for (size_t i = 0; order && i < o->child[0]->n && !r; i++)
			r = copy_node(x, order[i], exec);
		free(order);
		return r;
	}
	struct op *n = op_clone(o);
	n->origin = o->node;
	for (int i = 0; i < o->nchild && !r; i++) {
		n->child[i] = inner_copy(o->child[i], exec, &r);
		n->nchild += n->child[i] != NULL;
		if (n->child[i])
			n->child[i]->body = o->child[i]->body;
	}
	struct op *copies[64];
	int count = 0;
	for (struct op *c = x->head; c && count < 64; c = c->next)
		for (int i = 0; i < o->npreds; i++)
			if (c->origin == o->preds[i]->node)
				copies[count++] = c;
	graph_append(x, n, copies, count);
	return r;
}

/* graph_copy returns a copy of the graph, which holds its user objects and shares its conditions. */
struct graph *graph_copy(struct graph *g, bool exec, CUresult *r) {
	struct op **order = sorted(g);
	if (!order)
		return *r = INVALID_VALUE, NULL;
	struct graph *x = graph_new();
	x->ctx = g->ctx;
	if (exec) {
		obj_del(x->self);
		x->self = obj_add(x, T_EXEC);
	}
	for (int i = 0; i < g->nheld; i++) {
		x->held[x->nheld++] = g->held[i];
		user_keep(g->held[i].u, g->held[i].n);
	}
	for (int i = 0; i < g->nconditions; i++) {
		x->conditions[x->nconditions++] = g->conditions[i];
		g->conditions[i]->refs++;
	}
	*r = OK;
	for (size_t i = 0; i < g->n && !*r; i++)
		*r = copy_node(x, order[i], exec);
	free(order);
	if (*r) {
		graph_free(x);
		return NULL;
	}
	return x;
}

static CUresult create(handle *out, unsigned flags) {
	if (!out || flags)
		return INVALID_VALUE;
	*out = graph_new()->self;
	return OK;
}
API(cuGraphCreate, (handle *out, unsigned flags), create(out, flags))

static CUresult clone(handle *out, handle h) {
	struct graph *g = obj_get(h, T_GRAPH);
	CUresult r = INVALID_VALUE;
	struct graph *c = out && g ? graph_copy(g, false, &r) : NULL;
	if (c)
		*out = c->self;
	return c ? OK : r;
}
API(cuGraphClone, (handle *out, handle h), clone(out, h))

static CUresult find_in_clone(handle *out, handle node, handle h) {
	struct graph *g = obj_get(h, T_GRAPH);
	for (struct op *o = g && out ? g->head : NULL; o; o = o->next)
		if (o->origin == node)
			return *out = o->node, OK;
	return INVALID_VALUE;
}
API(cuGraphNodeFindInClone, (handle *out, handle node, handle g), find_in_clone(out, node, g))

static CUresult destroy(handle h) {
	struct graph *g = obj_get(h, T_GRAPH);
	if (!g || g->inner)
		return INVALID_VALUE;
	graph_free(g);
	return OK;
}
API_RELEASE(cuGraphDestroy, (handle h), destroy(h))

enum which { ALL, ROOTS };
static CUresult nodes(handle h, enum which w, handle *out, size_t *n) {
	struct graph *g = obj_get(h, T_GRAPH);
	if (!g || !n)
		return INVALID_VALUE;
	size_t found = 0;
	for (struct op *o = g->head; o; o = o->next)
		if (w == ALL || !o->npreds) {
			if (out && found < *n)
				out[found] = o->node;
			found++;
		}
	for (size_t i = found; out && i < *n; i++)
		out[i] = 0;
	if (!out || *n > found)
		*n = found;
	return OK;
}
API(cuGraphGetNodes, (handle h, handle *out, size_t *n), nodes(h, ALL, out, n))
API(cuGraphGetRootNodes, (handle h, handle *out, size_t *n), nodes(h, ROOTS, out, n))

static CUresult edges(handle h, handle *from, handle *to, void *data, size_t *n) {
	struct graph *g = obj_get(h, T_GRAPH);
	size_t found = 0;
	if (!g || !n || !from != !to)
		return INVALID_VALUE;
	for (struct op *o = g->head; o; o = o->next)
		for (int i = 0; i < o->npreds; i++, found++)
			if (from && found < *n)
				from[found] = o->preds[i]->node, to[found] = o->node;
	if (from && data)
		memset(data, 0, 8 * (*n < found ? *n : found));
	if (!from || *n > found)
		*n = found;
	return OK;
}
API(cuGraphGetEdges, (handle h, handle *from, handle *to, size_t *n), edges(h, from, to, NULL, n))
API(cuGraphGetEdges_v2, (handle h, handle *from, handle *to, void *data, size_t *n), edges(h, from, to, data, n))

static CUresult neighbours(handle h, bool before, handle *out, void *data, size_t *n) {
	struct op *o = obj_get(h, T_NODE);
	size_t found = 0;
	if (!o || !o->owner || !n)
		return INVALID_VALUE;
	for (struct op *p = o->owner->head; p; p = p->next) {
		struct op *from = before ? p : o, *to = before ? o : p;
		for (int i = 0; i < to->npreds; i++)
			if (to->preds[i] == from) {
				if (out && found < *n)
					out[found] = p->node;
				found++;
			}
	}
	if (out && data)
		memset(data, 0, 8 * (*n < found ? *n : found));
	if (!out || *n > found)
		*n = found;
	return OK;
}
API(cuGraphNodeGetDependencies, (handle h, handle *out, size_t *n), neighbours(h, true, out, NULL, n))
API(cuGraphNodeGetDependencies_v2, (handle h, handle *out, void *data, size_t *n), neighbours(h, true, out, data, n))
API(cuGraphNodeGetDependentNodes, (handle h, handle *out, size_t *n), neighbours(h, false, out, NULL, n))
API(cuGraphNodeGetDependentNodes_v2, (handle h, handle *out, void *data, size_t *n), neighbours(h, false, out, data, n))

static struct op *node_of(struct graph *g, handle h) {
	struct op *o = obj_get(h, T_NODE);
	return o && o->owner == g ? o : NULL;
}

static CUresult link_nodes(handle h, const handle *from, const handle *to, size_t n, bool add) {
	struct graph *g = obj_get(h, T_GRAPH);
	if (!g || (n && (!from || !to)))
		return INVALID_VALUE;
	for (size_t i = 0; i < n; i++)
		if (!node_of(g, from[i]) || !node_of(g, to[i]) || from[i] == to[i])
			return INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		struct op *a = node_of(g, from[i]), *b = node_of(g, to[i]);
		int at = 0;
		while (at < b->npreds && b->preds[at] != a)
			at++;
		if (add == (at < b->npreds)) /* an edge that exists, or one that does not */
			return INVALID_VALUE;
		if (add)
			list_add(&b->preds, &b->npreds, a);
		else
			b->preds[at] = b->preds[--b->npreds];
	}
	return OK;
}
API(cuGraphAddDependencies, (handle g, const handle *from, const handle *to, size_t n), link_nodes(g, from, to, n, true))
API(cuGraphAddDependencies_v2, (handle g, const handle *from, const handle *to, const void *data, size_t n),
	!plain_edges(data, n) ? NOT_SUPPORTED : link_nodes(g, from, to, n, true))
API(cuGraphRemoveDependencies, (handle g, const handle *from, const handle *to, size_t n), link_nodes(g, from, to, n, false))
API(cuGraphRemoveDependencies_v2, (handle g, const handle *from, const handle *to, const void *data, size_t n),
	!plain_edges(data, n) ? NOT_SUPPORTED : link_nodes(g, from, to, n, false))

static CUresult destroy_node(handle h) {
	struct op *o = obj_get(h, T_NODE);
	if (!o || !o->owner || obj_get(o->owner->self, T_EXEC))
		return INVALID_VALUE;
	struct graph *g = o->owner;
	struct op *prev = NULL;
	for (struct op *p = g->head; p; p = p->next) {
		if (p->next == o)
			prev = p;
		for (int i = 0; i < p->npreds; i++)
			if (p->preds[i] == o)
				p->preds[i--] = p->preds[--p->npreds];
	}
	if (prev)
		prev->next = o->next;
	else
		g->head = o->next;
	if (g->tail == o)
		g->tail = prev;
	g->n--;
	drop_op(o);
	return OK;
}
API_RELEASE(cuGraphDestroyNode, (handle h), destroy_node(h))

static CUresult node_type(handle h, int *out) {
	struct op *o = obj_get(h, T_NODE);
	if (!o || !out)
		return INVALID_VALUE;
	switch (o->kind) {
	case OP_LAUNCH: *out = 0; break;
	case OP_COPY: case OP_BOX: *out = 1; break;
	case OP_SET: *out = 2; break;
	case OP_HOST: *out = 3; break;
	case OP_CHILD: *out = 4; break;
	case OP_WAIT: *out = 6; break;
	case OP_RECORD: *out = 7; break;
	case OP_FREE: *out = 11; break;
	case OP_WRITE_VALUE: case OP_WAIT_VALUE: *out = 12; break;
	case OP_COND: *out = 13; break;
	default: *out = 5;
	}
	return OK;
}
API(cuGraphNodeGetType, (handle h, int *out), node_type(h, out))
