package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// reloadEvery is the minimum interval between checks of the files.
const reloadEvery = time.Second

// reloaded is a value that is read from files and reloaded when one of them changes. If a changed file cannot be read,
// the previous value stays in use, and reading is repeated until it succeeds.
type reloaded[T any] struct {
	name  string // in metrics
	paths []string
	read  func() (T, error)
	log   *slog.Logger

	mu       sync.Mutex
	value    T
	stamps   string // of the files of value
	checked  time.Time
	loaded   time.Time
	failures uint64
	failed   string // text of the latest failure; empty after a success
}

// newReloaded reads the initial value.
func newReloaded[T any](name string, log *slog.Logger, read func() (T, error), paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{name: name, paths: paths, read: read, log: log, checked: time.Now(), loaded: time.Now()}
	r.stamps = r.look() // before reading, so that a change in between is detected
	var err error
	r.value, err = read()
	return r, err
}

// look returns a text that differs for each state of the files.
func (r *reloaded[T]) look() string {
	var text strings.Builder
	for _, path := range r.paths {
		stamp(&text, path)
	}
	return text.String()
}

// stamp adds the state of a file. That of a directory includes its files, which may be links to files that change.
func stamp(text *strings.Builder, path string) {
	info, err := os.Stat(path)
	if err != nil {
		fmt.Fprintf(text, "%q: %v\n", path, err)
		return
	}
	fmt.Fprintf(text, "%q: %d %d %v %s\n", path, info.Size(), info.ModTime().UnixNano(), info.Mode(), identityOfFile(info))
	if !info.IsDir() {
		return
	}
	entries, _ := os.ReadDir(path) // a missing directory has no files
	for _, e := range entries {
		inner := filepath.Join(path, e.Name())
		if info, err := os.Stat(inner); err == nil {
			fmt.Fprintf(text, "%q: %d %d %v %s\n", inner, info.Size(), info.ModTime().UnixNano(), info.Mode(), identityOfFile(info))
		}
	}
}

// get returns the value of the files as of at most reloadEvery ago, or the latest one that could be read.
func (r *reloaded[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.checked) < reloadEvery {
		return r.value
	}
	r.checked = time.Now()
	if stamps := r.look(); stamps != r.stamps {
		r.reloadLocked(stamps)
	}
	return r.value
}

// errChanging means that a file changed while it was read.
var errChanging = errors.New("a file changed while it was read")

func (r *reloaded[T]) reloadLocked(stamps string) {
	value, err := r.read()
	if err == nil && r.look() != stamps {
		err = errChanging
	}
	log := r.log
	if log == nil {
		log = slog.Default()
	}
	if err != nil { // the stamps stay those of the value in use, so that the next check reads again
		r.failures++
		if text := err.Error(); text != r.failed {
			r.failed = text
			log.Error("cannot reload changed files, keeping the previous version and trying again", "files", r.paths, "error", err)
		}
		return
	}
	log.Info("reloaded changed files", "files", r.paths)
	r.value, r.stamps, r.loaded, r.failed = value, stamps, time.Now(), ""
}

// Describe implements prometheus.Collector.
func (r *reloaded[T]) Describe(out chan<- *prometheus.Desc) {
	out <- reloadFailures
	out <- reloadFailing
	out <- reloadTime
}

var (
	reloadFailures = prometheus.NewDesc("sharedtensor_gateway_reload_failures_total", "Attempts to reload changed files that failed.", []string{"files"}, nil)
	reloadFailing  = prometheus.NewDesc("sharedtensor_gateway_reload_failing", "1 while changed files cannot be read and the previous version is in use.", []string{"files"}, nil)
	reloadTime     = prometheus.NewDesc("sharedtensor_gateway_loaded_timestamp_seconds", "When the version in use was read.", []string{"files"}, nil)
)

// Collect implements prometheus.Collector. It checks the files, which is otherwise done when they are used.
func (r *reloaded[T]) Collect(out chan<- prometheus.Metric) {
	r.get()
	r.mu.Lock()
	defer r.mu.Unlock()
	failing := 0.0
	if r.failed != "" {
		failing = 1
	}
	out <- prometheus.MustNewConstMetric(reloadFailures, prometheus.CounterValue, float64(r.failures), r.name)
	out <- prometheus.MustNewConstMetric(reloadFailing, prometheus.GaugeValue, failing, r.name)
	out <- prometheus.MustNewConstMetric(reloadTime, prometheus.GaugeValue, float64(r.loaded.UnixMilli())/1e3, r.name)
}

// reloadCollector collects the metrics of several files, which have the same names.
type reloadCollector []prometheus.Collector

// Describe implements prometheus.Collector.
func (c reloadCollector) Describe(out chan<- *prometheus.Desc) {
	if len(c) > 0 {
		c[0].Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c reloadCollector) Collect(out chan<- prometheus.Metric) {
	for _, one := range c {
		one.Collect(out)
	}
}

// collector returns the metrics of the files of the identities.
func (ids *identities) collector() (all reloadCollector) {
	if ids.tokens != nil {
		all = append(all, ids.tokens.list)
	}
	if ids.certificates != nil {
		all = append(all, ids.certificates.pair)
	}
	if ids.clientCA != nil {
		all = append(all, ids.clientCA)
	}
	if ids.policy != nil {
		all = append(all, ids.policy)
	}
	return all
}
