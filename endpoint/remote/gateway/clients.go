package gateway

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Limits of the clients and of their targets that are counted separately. The rest are counted as one.
const (
	maxClients = 256
	maxTargets = 64
	// maxTargetBytes limits the length of a name that is counted.
	maxTargetBytes = 256
	shownUses      = 4
)

// others is the name under which further clients and targets are counted.
const others = "others"

// clients counts the requests of each client for the page.
type clients struct {
	mu    sync.Mutex
	known map[string]*clientCount
}

type clientCount struct {
	name, method    string
	calls, failures uint64
	recent          []time.Duration // ring buffer of recentCalls
	next            int
	uses            map[string]uint64 // by model or function
}

// ClientStats holds the statistics of one client.
type ClientStats struct {
	// Name is the name of the token or certificate, and Method how the client was authenticated.
	Name   string `json:"name"`
	Method string `json:"method"`
	// Calls counts HTTP requests and gRPC calls, and Failures those that ended with an error.
	Calls    uint64 `json:"calls"`
	Failures uint64 `json:"failures"`
	// P50 and P99 are quantiles of the recent latencies, in seconds.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	// Uses lists the models and functions that the client used most.
	Uses []string `json:"uses"`
}

// target is the model or function of a request, which the first right that the client has sets.
type target struct {
	mu   sync.Mutex
	name string
}

type targetKey struct{}

func withTarget(ctx context.Context) (context.Context, *target) {
	t := &target{}
	return context.WithValue(ctx, targetKey{}, t), t
}

// setTarget records the model or function of the request of ctx.
func setTarget(ctx context.Context, name string) {
	t, _ := ctx.Value(targetKey{}).(*target)
	if t == nil || name == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.name == "" {
		t.name = name
	}
}

func (t *target) get() string {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.name
}

// observe counts a request of a client that took d.
func (c *clients) observe(id Identity, t *target, failed bool, d time.Duration) {
	if !id.Known() {
		return
	}
	use := t.get()
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.ofLocked(id)
	one.calls++
	if failed {
		one.failures++
	}
	if len(one.recent) < recentCalls {
		one.recent = append(one.recent, d)
	} else {
		one.recent[one.next] = d
		one.next = (one.next + 1) % recentCalls
	}
	if use == "" {
		return
	}
	if _, counted := one.uses[use]; !counted {
		if failed || len(use) > maxTargetBytes || len(one.uses) >= maxTargets {
			use = others // clients can invent names
		}
		use = strings.Clone(use) // it may be a part of a large message
	}
	one.uses[use]++
}

func (c *clients) ofLocked(id Identity) *clientCount {
	key := id.Key()
	if one := c.known[key]; one != nil {
		return one
	}
	name, method := orString(id.Name, id.ID), id.Method
	if len(c.known) >= maxClients {
		key, name, method = others, others, ""
		if one := c.known[key]; one != nil {
			return one
		}
	}
	one := &clientCount{name: name, method: method, uses: make(map[string]uint64)}
	if c.known == nil {
		c.known = make(map[string]*clientCount)
	}
	c.known[key] = one
	return one
}

// snapshot returns the statistics of all clients, those with the most requests first.
func (c *clients) snapshot() []ClientStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]ClientStats, 0, len(c.known))
	for _, one := range c.known {
		sorted := slices.Sorted(slices.Values(one.recent))
		s := ClientStats{Name: one.name, Method: one.method, Calls: one.calls, Failures: one.failures, P50: quantile(sorted, 50), P99: quantile(sorted, 99), Uses: []string{}}
		for use := range one.uses {
			s.Uses = append(s.Uses, use)
		}
		slices.SortFunc(s.Uses, func(a, b string) int { return cmp.Or(cmp.Compare(one.uses[b], one.uses[a]), cmp.Compare(a, b)) })
		s.Uses = s.Uses[:min(len(s.Uses), shownUses)]
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b ClientStats) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Method, b.Method))
	})
	return all
}

// counterValues returns the values of a counter by its only label.
func counterValues(c *prometheus.CounterVec) map[string]uint64 {
	values := map[string]uint64{}
	metrics := make(chan prometheus.Metric)
	go func() { // ends with the last metric
		c.Collect(metrics)
		close(metrics)
	}()
	for m := range metrics {
		var out dto.Metric
		if m.Write(&out) == nil && len(out.GetLabel()) == 1 {
			values[out.GetLabel()[0].GetValue()] = uint64(out.GetCounter().GetValue())
		}
	}
	return values
}
