package gateway

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/metrics"
)

// ownerPatience is how long a scrape waits for the owner's metrics. After that, the gateway's metrics are sent alone.
const ownerPatience = 2 * time.Second

// newMetrics returns a registry with the standard process metrics.
func newMetrics(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sharedtensor_gateway_build_info", Help: "The version of the gateway; the value is always 1.",
	}, []string{"version"})
	build.WithLabelValues(version).Set(1)
	registry.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// registerGauges adds the metrics that are computed at scrape time.
func (g *Gateway) registerGauges() {
	gauge := func(name, help string, value func() float64) {
		g.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sharedtensor_gateway_" + name, Help: help}, value))
	}
	gauge("owner_attached", "1 while an owner is attached.", func() float64 {
		if g.owner.ready() == nil && g.owner.ServerID() != "" {
			return 1
		}
		return 0
	})
	gauge("request_bytes", "Bytes of requests that are held until they are processed.", func() float64 { return float64(g.admitted.Requests.Used()) })
	gauge("request_limit_bytes", "Limit of the bytes of requests: --max-in-flight.", func() float64 { return float64(g.config.MaxInFlight) })
	gauge("calls", "Calls of HTTP and gRPC that run.", func() float64 { return float64(g.admitted.Running()) })
	g.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "sharedtensor_gateway_owner_attaches_total", Help: "How often an owner came or came back.",
	}, func() float64 { return float64(g.owner.attaches.Load()) }))
	for limit := range g.admitted.Refused() {
		g.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sharedtensor_gateway_limit_refusals_total", Help: "Requests and bytes refused because a limit was reached, by limit.",
			ConstLabels: prometheus.Labels{"limit": strings.ReplaceAll(limit, " ", "_")},
		}, func() float64 { return float64(g.admitted.Refused()[limit]) }))
	}
	running := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sharedtensor_gateway_running_calls", Help: "Requests of HTTP and calls of gRPC that run, by protocol.",
	}, []string{"protocol"})
	g.metrics.MustRegister(running)
	g.runningHTTP, g.runningGRPC = running.WithLabelValues("http"), running.WithLabelValues("grpc")
	if files := g.ids.collector(); len(files) > 0 {
		g.metrics.MustRegister(files)
	}
	for _, l := range []*namedListener{g.http, g.grpc, g.admin} {
		if l == nil {
			continue
		}
		labels := prometheus.Labels{"listener": l.name}
		g.metrics.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "sharedtensor_gateway_connections", Help: "Connections that are open.", ConstLabels: labels,
			}, func() float64 { return float64(l.Open()) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "sharedtensor_gateway_connections_refused_total", Help: "Connections refused because the limit was reached.", ConstLabels: labels,
			}, func() float64 { return float64(l.Refused()) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "sharedtensor_gateway_connections_stalled_total", Help: "Connections with a transfer whose peer made no progress for --stall.", ConstLabels: labels,
			}, func() float64 { return float64(l.Stalled()) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "sharedtensor_gateway_proxy_header_errors_total", Help: "Connections of --proxy-protocol without a correct header.", ConstLabels: labels,
			}, func() float64 { return float64(l.Malformed()) }))
		states := map[string]func() int{}
		if of := g.states[l.name]; of != nil {
			for _, state := range []http.ConnState{http.StateNew, http.StateActive, http.StateIdle} {
				states[state.String()] = func() int { return of.number(state) }
			}
		} else {
			states["unidentified"] = func() int { _, unproven := g.guard.Connections(); return unproven }
			states["identified"] = func() int { all, unproven := g.guard.Connections(); return all - unproven }
		}
		for state, number := range states {
			g.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "sharedtensor_gateway_connection_states", Help: "Open connections by state: new, active and idle for HTTP; unidentified without a client that the gateway accepts, and identified, for gRPC.",
				ConstLabels: prometheus.Labels{"listener": l.name, "state": state},
			}, func() float64 { return float64(number()) }))
		}
	}
	if c := g.ids.certificates; c != nil {
		gauge("certificate_expires_timestamp_seconds", "When the certificate ends.", func() float64 { return float64(c.expires().Unix()) })
	}
	gauge("insecure", "1 where listeners beyond loopback were allowed without TLS or identity.", func() float64 {
		if g.config.Insecure {
			return 1
		}
		return 0
	})
}

// metricsHandler serves the gateway's metrics and, if the owner answers in time, the owner's.
func (g *Gateway) metricsHandler() http.Handler {
	both := prometheus.Gatherers{g.metrics, prometheus.GathererFunc(g.gatherOwner)}
	handler := func(from prometheus.Gatherer) http.Handler {
		return promhttp.HandlerFor(from, promhttp.HandlerOpts{
			ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true, MaxRequestsInFlight: 8, Timeout: 2 * ownerPatience,
			ErrorLog: slogPrinter{g.log},
		})
	}
	text, open := handler(both), handler(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return distinct(both.Gather()) }))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...).FormatType() == expfmt.TypeOpenMetrics {
			open.ServeHTTP(w, r)
			return
		}
		text.ServeHTTP(w, r)
	})
}

// distinct removes families whose names conflict in OpenMetrics, where the counter x_total is the family x. The Go
// collector has go_memstats_alloc_bytes both as a gauge and with _total. The gauge is also available as
// go_memstats_heap_alloc_bytes.
func distinct(families []*dto.MetricFamily, err error) ([]*dto.MetricFamily, error) {
	counters := map[string]bool{}
	for _, family := range families {
		if name, total := strings.CutSuffix(family.GetName(), "_total"); total && family.GetType() == dto.MetricType_COUNTER {
			counters[name] = true
		}
	}
	return slices.DeleteFunc(families, func(family *dto.MetricFamily) bool { return counters[family.GetName()] }), err
}

// gatherOwner reads the owner's metrics. An absent or slow owner does not fail a scrape;
// sharedtensor_gateway_owner_attached reports it.
func (g *Gateway) gatherOwner() ([]*dto.MetricFamily, error) {
	client, err := g.owner.Client()
	if err != nil || g.owner.ready() != nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), ownerPatience)
	defer cancel()
	info, err := client.ServerInfo(ctx)
	if err != nil {
		if !errors.Is(err, endpoint.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
		return nil, nil
	}
	var text bytes.Buffer
	if err := metrics.Write(&text, info); err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	byName, err := parser.TextToMetricFamilies(&text)
	if err != nil {
		return nil, err
	}
	families := make([]*dto.MetricFamily, 0, len(byName))
	for _, family := range byName {
		families = append(families, family)
	}
	return families, nil
}
