package admission

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// ErrLimit reports that a pool, or an identity's share of it, is used up.
var ErrLimit = NewError(Limit, "too much in flight")

// Limits holds the limits of a Pool, in bytes.
type Limits struct {
	// Bytes limits all clients together.
	Bytes int64
	// Share limits one identity. 0 means half of Bytes, or all of Bytes at a gateway that requires no identity.
	Share int64
	// ReadOnly limits all read-only identities together. 0 means Share.
	ReadOnly int64
	// Anonymous limits all unknown clients together.
	Anonymous int64
	// Quota returns the part of an identity's quota that limits it in this pool; 0 for none. It may be nil.
	Quota func(rights.Quota) int64
	// Setting is the flag that raises Bytes, for error messages. It may be empty.
	Setting string
}

// Pool is a budget in bytes, shared by requests. Its methods are safe for concurrent use.
type Pool struct {
	limits Limits
	local  int64 // share of clients at a gateway that requires no identity
	// parent is also charged for read-only and unknown identities, uploads for those with a quota of uploads. Both may be
	// nil.
	parent, uploads *Pool

	refused atomic.Uint64 // charges over a limit

	mu    sync.Mutex
	used  int64
	group map[string]*group // by identity, and by class of identities
}

// group is the usage of one identity or one class of identities.
type group struct {
	key         string
	used, limit int64
	charges     int // open charges; the group is removed with the last one
}

// NewPool returns a pool.
func NewPool(limits Limits) *Pool {
	local := limits.Share
	if limits.Share == 0 {
		limits.Share, local = max(1, limits.Bytes/2), limits.Bytes
	}
	if limits.ReadOnly == 0 {
		limits.ReadOnly = limits.Share
	}
	return &Pool{limits: limits, local: local, group: make(map[string]*group)}
}

// Used returns the number of charged bytes.
func (p *Pool) Used() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Limit returns the maximum number of bytes that an identity can have charged.
func (p *Pool) Limit(id rights.Identity) int64 {
	limit := p.limits.Share
	switch {
	case !id.Known():
		limit = p.limits.Anonymous
	case id.Method == rights.MethodNone:
		limit = p.local
	}
	if id.ReadOnly {
		limit = min(limit, p.limits.ReadOnly)
	}
	if quota := p.quota(id); quota > 0 {
		limit = min(limit, quota)
	}
	return min(limit, p.limits.Bytes)
}

// quota returns the quota of an identity in this pool, or 0 if it has none.
func (p *Pool) quota(id rights.Identity) int64 {
	if p.limits.Quota == nil {
		return 0
	}
	return p.limits.Quota(id.Quota())
}

// share returns the limit of an identity by its method of authentication and its quota.
func (p *Pool) share(id rights.Identity) int64 {
	limit := p.limits.Share
	if id.Method == rights.MethodNone {
		limit = p.local
	}
	if quota := p.quota(id); quota > 0 {
		limit = min(limit, quota)
	}
	return limit
}

// Open returns a charge of 0 bytes for a request of id. The caller closes it.
func (p *Pool) Open(id rights.Identity) *Charge {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &Charge{pool: p}
	if p.parent != nil && (id.ReadOnly || !id.Known()) {
		c.parents = append(c.parents, p.parent.Open(id))
	}
	if p.uploads != nil && p.uploads.quota(id) > 0 {
		c.parents = append(c.parents, p.uploads.Open(id))
	}
	if id.Known() {
		c.groups[0] = p.joinLocked(id.Key(), p.share(id))
	} else {
		c.groups[0] = p.joinLocked("", p.limits.Anonymous)
	}
	if id.ReadOnly {
		c.groups[1] = p.joinLocked("read-only", p.limits.ReadOnly)
	}
	return c
}

func (p *Pool) joinLocked(key string, limit int64) *group {
	g := p.group[key]
	if g == nil {
		g = &group{key: key}
		p.group[key] = g
	}
	g.limit = limit // a new policy may have another quota
	g.charges++
	return g
}

func (p *Pool) leaveLocked(g *group) {
	if g.charges--; g.charges == 0 {
		delete(p.group, g.key)
	}
}

// Charge is the part of a pool that one request or transfer uses. Its methods are safe for concurrent use.
type Charge struct {
	pool    *Pool
	groups  [2]*group // of the identity and of its class; nil if unused
	parents []*Charge // charges of the same bytes in other pools

	bytes  int64 // guarded by pool.mu, like closed
	closed bool
}

// Add charges n received bytes. If it fails with ErrLimit, it charges nothing.
func (c *Charge) Add(n int64) error {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.closed {
		return fmt.Errorf("%w: the request has ended", ErrLimit)
	}
	if n > p.limits.Bytes-p.used {
		return p.full("all clients", p.used, p.limits.Bytes)
	}
	for _, g := range c.groups {
		if g != nil && n > g.limit-g.used {
			return p.full("this client", g.used, g.limit)
		}
	}
	for i, parent := range c.parents {
		if err := parent.Add(n); err != nil {
			for _, charged := range c.parents[:i] {
				charged.Release(n)
			}
			return err
		}
	}
	c.moveLocked(n)
	return nil
}

func (p *Pool) full(who string, used, limit int64) error {
	p.refused.Add(1)
	if p.limits.Setting == "" {
		return fmt.Errorf("%w: %s may have %d bytes in flight and has %d", ErrLimit, who, limit, used)
	}
	return fmt.Errorf("%w: %s may have %d bytes in flight and has %d: try again later, or raise %s", ErrLimit, who, limit, used, p.limits.Setting)
}

// Release returns n of the charged bytes to the pool.
func (c *Charge) Release(n int64) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if c.closed {
		return
	}
	n = min(n, c.bytes)
	c.moveLocked(-n)
	for _, parent := range c.parents {
		parent.Release(n)
	}
}

func (c *Charge) moveLocked(n int64) {
	c.bytes += n
	c.pool.used += n
	for _, g := range c.groups {
		if g != nil {
			g.used += n
		}
	}
}

// Bytes returns the number of charged bytes.
func (c *Charge) Bytes() int64 {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return c.bytes
}

// Close returns all bytes to the pool. Further calls have no effect.
func (c *Charge) Close() {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if c.closed {
		return
	}
	c.moveLocked(-c.bytes)
	c.closed = true
	for _, parent := range c.parents {
		parent.Close()
	}
	for _, g := range c.groups {
		if g != nil {
			c.pool.leaveLocked(g)
		}
	}
}
