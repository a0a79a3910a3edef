package gateway

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// recentCalls is the number of latencies kept for each method, from which the page's quantiles are computed.
const recentCalls = 512

// maxMethods limits the number of methods that are counted separately. The rest are counted as one. The limit is a
// safeguard: only registered names are counted.
const maxMethods = 512

// Calls counts the calls that the gateway answers, by protocol and method, for /metrics and the page.
type Calls struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec

	mu      sync.Mutex
	methods map[callKey]*callStats
}

type callKey struct{ protocol, method string }

// callStats counts the calls of one method.
type callStats struct {
	requests prometheus.Observer
	ok       prometheus.Counter // nil before the first success
	calls    uint64
	failures uint64
	recent   []time.Duration // ring buffer of recentCalls
	next     int
}

// CallStats holds the statistics of one method.
type CallStats struct {
	// Protocol is "jsonrpc", "http", "grpc" or "nats".
	Protocol string `json:"protocol"`
	// Method is the name of the method or route.
	Method string `json:"method"`
	// Calls counts all calls. Failures counts calls that ended with an error.
	Calls    uint64 `json:"calls"`
	Failures uint64 `json:"failures"`
	// P50 and P99 are the median and the 99th percentile of the recent latencies, in seconds.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func newCalls(registry prometheus.Registerer) *Calls {
	c := &Calls{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sharedtensor_gateway_requests_total", Help: "Requests answered, by protocol, method and outcome.",
		}, []string{"protocol", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sharedtensor_gateway_request_seconds", Help: "Time until a request was answered in full.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}, []string{"protocol", "method"}),
		methods: map[callKey]*callStats{},
	}
	registry.MustRegister(c.requests, c.seconds)
	return c
}

// Observe counts a call that took d and ended with code, which is "ok" or one of the protocol's few error labels.
// method must be a registered name, not one that a peer can choose.
func (c *Calls) Observe(protocol, method, code string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.statsLocked(callKey{protocol, method})
	s.requests.Observe(d.Seconds())
	s.calls++
	if code != "ok" {
		s.failures++
		c.requests.WithLabelValues(protocol, method, code).Inc()
	} else {
		if s.ok == nil {
			s.ok = c.requests.WithLabelValues(protocol, method, code) // resolving labels costs more than the rest
		}
		s.ok.Inc()
	}
	if len(s.recent) < recentCalls {
		s.recent = append(s.recent, d)
		return
	}
	s.recent[s.next] = d
	s.next = (s.next + 1) % recentCalls
}

func (c *Calls) statsLocked(key callKey) *callStats {
	if s := c.methods[key]; s != nil {
		return s
	}
	if len(c.methods) >= maxMethods {
		key = callKey{key.protocol, "others"}
		if s := c.methods[key]; s != nil {
			return s
		}
	}
	s := &callStats{requests: c.seconds.WithLabelValues(key.protocol, key.method)}
	c.methods[key] = s
	return s
}

// Snapshot returns the statistics of all methods that were called, ordered by name.
func (c *Calls) Snapshot() []CallStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]CallStats, 0, len(c.methods))
	for key, s := range c.methods {
		sorted := slices.Sorted(slices.Values(s.recent))
		all = append(all, CallStats{
			Protocol: key.protocol, Method: key.method, Calls: s.calls, Failures: s.failures,
			P50: quantile(sorted, 50), P99: quantile(sorted, 99),
		})
	}
	slices.SortFunc(all, func(a, b CallStats) int {
		if a.Protocol != b.Protocol {
			return strings.Compare(a.Protocol, b.Protocol)
		}
		return strings.Compare(a.Method, b.Method)
	})
	return all
}

// quantile returns the given percentile of sorted, in seconds. It returns 0 if sorted is empty.
func quantile(sorted []time.Duration, percent int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)].Seconds()
}
