package gateway

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Limits of the page: sampling interval, time for a sample, number of viewers, and number of tasks in a sample.
const (
	sampleEvery    = time.Second
	samplePatience = 2 * time.Second
	maxViewers     = 64
	maxPageTasks   = 100
)

// eventsRoute is the stream of samples.
const eventsRoute = "GET /v1/events"

//go:embed assets
var pageAssets embed.FS

// page serves a static page and a stream of samples. It takes no samples without viewers.
type page struct {
	gateway *Gateway

	mu      sync.Mutex
	viewers int
	sample  []byte
	next    chan struct{} // closed when the next sample is available
	running bool

	stopped chan struct{}
	stop    func()
}

// pageStatus is one sample.
type pageStatus struct {
	Time    time.Time           `json:"time"`
	Gateway gatewayStatus       `json:"gateway"`
	Owner   ownerStatus         `json:"owner"`
	Models  []modelStatus       `json:"models"`
	Calls   []CallStats         `json:"calls"`
	Clients []ClientStats       `json:"clients"`
	Tasks   []endpoint.TaskInfo `json:"tasks"`
	// Components holds the status of each component by name.
	Components map[string]any `json:"components"`
}

type gatewayStatus struct {
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Insecure bool      `json:"insecure"`
	// Open reports that requests need neither a token nor a certificate.
	Open bool `json:"open"`
	// Refusals counts refused requests by the right that was missing, and Limits those over a limit.
	Refusals    map[string]uint64 `json:"refusals"`
	Limits      map[string]uint64 `json:"limits"`
	Access      string            `json:"access"`
	ReadOnly    bool              `json:"read_only"`
	Draining    bool              `json:"draining"`
	Addresses   map[string]string `json:"addresses"`
	Connections map[string]int64  `json:"connections"`
	NotReady    map[string]string `json:"not_ready,omitempty"`
}

type ownerStatus struct {
	Attached  bool                     `json:"attached"`
	Socket    string                   `json:"socket,omitempty"`
	Error     string                   `json:"error,omitempty"`
	ID        string                   `json:"server_id,omitempty"`
	Version   string                   `json:"version,omitempty"`
	Label     string                   `json:"label,omitempty"`
	PID       int32                    `json:"pid,omitempty"`
	StartedAt time.Time                `json:"started_at,omitzero"`
	Devices   []endpoint.DeviceInfo    `json:"devices"`
	Memory    []endpoint.MemoryUse     `json:"memory"`
	Stats     *endpoint.ServerStats    `json:"stats,omitempty"`
	Endpoints []endpoint.EndpointStats `json:"endpoints"`
}

// modelStatus describes a version of a model.
type modelStatus struct {
	Name        string    `json:"name"`
	Version     uint64    `json:"version"`
	Newest      bool      `json:"newest"`
	Bytes       int64     `json:"bytes"`
	Tensors     int       `json:"tensors"`
	PublishedAt time.Time `json:"published_at"`
	Source      string    `json:"source,omitempty"`
	Holders     []string  `json:"holders"`
	// Placements lists its copies on other devices.
	Placements []endpoint.PlacementInfo `json:"placements,omitempty"`
}

func newPage(g *Gateway) *page {
	p := &page{gateway: g, next: make(chan struct{}), stopped: make(chan struct{})}
	p.stop = sync.OnceFunc(func() { close(p.stopped) })
	return p
}

func (p *page) handle(mux Mux) {
	assets, err := fs.Sub(pageAssets, "assets")
	if err != nil {
		panic(err) // unreachable: the directory is embedded
	}
	files := http.FileServerFS(assets)
	static := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		files.ServeHTTP(w, r)
	})
	mux.Handle("GET /{$}", static)
	for _, name := range []string{"/page.css", "/page.js", "/icon.svg", "/openapi.yaml"} {
		mux.Handle("GET "+name, static)
	}
	mux.Handle("GET /v1/status", http.HandlerFunc(p.once))
	mux.Handle(eventsRoute, http.HandlerFunc(p.events))
}

// once answers with a single sample, for scripts.
func (p *page) once(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), samplePatience)
	defer cancel()
	writeJSON(w, http.StatusOK, p.take(ctx))
}

// events sends samples until the viewer leaves or the gateway stops. Slow viewers miss samples.
func (p *page) events(w http.ResponseWriter, r *http.Request) {
	if !p.enter() {
		http.Error(w, "too many viewers: close another page first", http.StatusServiceUnavailable)
		return
	}
	defer p.leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	var seen []byte
	for {
		sample, next := p.latest()
		if sample != nil && (seen == nil || &sample[0] != &seen[0]) {
			seen = sample
			if _, err := fmt.Fprintf(w, "retry: 2000\nevent: status\ndata: %s\n\n", sample); err != nil || control.Flush() != nil {
				return
			}
		}
		select {
		case <-next:
		case <-r.Context().Done():
			return
		case <-p.stopped:
			return
		}
	}
}

// enter counts a viewer and starts sampling for the first one.
func (p *page) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.viewers >= maxViewers {
		return false
	}
	p.viewers++
	if !p.running {
		p.running, p.sample = true, nil
		p.gateway.background.Go(p.run)
	}
	return true
}

func (p *page) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.viewers--
}

func (p *page) latest() ([]byte, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sample, p.next
}

// run takes samples until there are no viewers.
func (p *page) run() {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(p.gateway.requests, samplePatience)
		sample, err := json.Marshal(p.take(ctx))
		cancel()
		if err != nil {
			p.gateway.log.Error("cannot encode the status page", "error", err)
		}
		if !p.publish(sample) {
			return
		}
		select {
		case <-tick.C:
		case <-p.stopped:
			p.mu.Lock()
			p.running = false
			p.mu.Unlock()
			return
		}
	}
}

// publish passes a sample to the viewers. If there are none, it ends sampling and returns false.
func (p *page) publish(sample []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sample != nil {
		p.sample = sample
		close(p.next)
		p.next = make(chan struct{})
	}
	if p.viewers == 0 {
		p.running = false
	}
	return p.running
}

// take takes a sample.
func (p *page) take(ctx context.Context) pageStatus {
	g := p.gateway
	s := pageStatus{Time: time.Now(), Gateway: g.statusForPage(ctx), Calls: g.calls.Snapshot(), Clients: g.clients.snapshot(), Components: map[string]any{}}
	s.Owner, s.Models, s.Tasks = g.ownerForPage(ctx)
	for _, c := range g.components {
		reporter, ok := c.(StatusReporter)
		if !ok {
			continue
		}
		v, err := reporter.Status(ctx)
		if err != nil {
			v = map[string]string{"error": err.Error()}
		}
		s.Components[c.Name()] = v
	}
	return s
}

func (g *Gateway) statusForPage(ctx context.Context) gatewayStatus {
	a := g.Addresses()
	s := gatewayStatus{
		Version: g.version, Started: g.started, Insecure: g.config.Insecure, Open: g.ids.open(), Refusals: counterValues(g.refusals), Limits: g.admitted.Refused(), Access: g.ids.access(), ReadOnly: g.config.ReadOnly, Draining: g.draining.Load(),
		Addresses: map[string]string{}, Connections: map[string]int64{}, NotReady: g.health.look(ctx),
	}
	for name, address := range map[string]string{"http": a.HTTP, "grpc": a.GRPC, "nats": a.NATS} {
		if address != "" {
			s.Addresses[name] = address
		}
	}
	for _, l := range []*namedListener{g.http, g.grpc} {
		if l != nil {
			s.Connections[l.name] = l.Open()
		}
	}
	return s
}

// ownerForPage returns the owner's state, or the part that was available in time.
func (g *Gateway) ownerForPage(ctx context.Context) (s ownerStatus, models []modelStatus, tasks []endpoint.TaskInfo) {
	s = ownerStatus{Socket: g.owner.path(), Devices: []endpoint.DeviceInfo{}, Memory: []endpoint.MemoryUse{}, Endpoints: []endpoint.EndpointStats{}}
	models, tasks = []modelStatus{}, []endpoint.TaskInfo{}
	fail := func(err error) (ownerStatus, []modelStatus, []endpoint.TaskInfo) {
		s.Error = err.Error()
		return s, models, tasks
	}
	if g.config.Owner == Off {
		s.Socket = ""
	}
	if err := g.owner.ready(); err != nil {
		return fail(err)
	}
	for _, caller := range g.owner.Callers() {
		list, err := caller.Tasks(ctx, endpoint.TaskFilter{})
		if err != nil {
			return fail(err)
		}
		tasks = append(tasks, list...)
	}
	tasks = newestTasks(tasks)
	client, err := g.owner.Client()
	if err != nil {
		return fail(err)
	}
	info, err := client.ServerInfo(ctx)
	if err != nil {
		return fail(err)
	}
	s.Attached, s.ID, s.Version, s.Label, s.PID, s.StartedAt = true, info.ID, info.Version, info.Label, info.PID, info.StartedAt
	s.Devices, s.Memory, s.Stats, s.Endpoints = orEmpty(info.Devices), orEmpty(info.Memory), &info.Stats, orEmpty(info.Endpoints)
	list, err := client.List(ctx)
	if err != nil {
		return fail(err)
	}
	for _, m := range list {
		for _, v := range m.Versions {
			models = append(models, modelStatus{
				Name: m.Name, Newest: v.Version == m.Current, Version: v.Version, Bytes: v.Bytes, Tensors: v.Tensors,
				PublishedAt: v.PublishedAt, Source: v.Source, Holders: holderWords(v.Holders), Placements: v.Placements,
			})
		}
	}
	return s, models, tasks
}

// newestTasks returns the tasks that were submitted last.
func newestTasks(tasks []endpoint.TaskInfo) []endpoint.TaskInfo {
	if len(tasks) > maxPageTasks {
		tasks = tasks[len(tasks)-maxPageTasks:]
	}
	return tasks
}

func holderWords(holders []endpoint.Holder) []string {
	words := make([]string, len(holders))
	for i, h := range holders {
		words[i] = fmt.Sprintf("%s (pid %d)", orString(h.Label, "unnamed"), h.PID)
	}
	return words
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
