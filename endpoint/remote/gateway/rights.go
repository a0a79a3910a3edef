package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/internal/logs"
)

// Allow returns nil if the sender of a request has a right to a model or a function of the owner. An empty name means
// any of them. Otherwise the error is rights.ErrReadOnly or rights.ErrRight.
func (e *Env) Allow(ctx context.Context, right access.Right, name string) error {
	if (right == access.Publish || right == access.Withdraw) && e.ReadOnly {
		return e.refusedBy(right.String(), errReadOnlyGateway)
	}
	err := e.refusedBy(right.String(), rights.Sender(ctx).Allow(right, name))
	if err == nil {
		setTarget(ctx, name)
	}
	if err == nil && (right == access.Publish || right == access.Withdraw) {
		err = e.recordRequest(ctx, right.String(), "model", name)
	}
	return err
}

// recordRequest writes a line about a change before it is made, with --require-audit. It returns an error if the line cannot
// be written, so that no change is made without a record.
func (e *Env) recordRequest(ctx context.Context, change string, attrs ...any) error {
	if !e.requireAudit {
		return nil
	}
	if err := record(ctx, e.audit, rights.Sender(ctx), change, append([]any{"state", "requested"}, attrs...)); err != nil {
		return fmt.Errorf("%w: this gateway requires a record of each change, and its audit log cannot be written", endpoint.ErrUnavailable)
	}
	return nil
}

// Check returns nil if the sender of a request may do an operation with the model or function of the name. An empty name
// means any of them. Unlike [Env.Allow] it records nothing.
func (e *Env) Check(ctx context.Context, need rights.Need, name string) error {
	return checkNeed(rights.Sender(ctx), need, name, e.ReadOnly, e.refusals)
}

func checkNeed(id Identity, need rights.Need, name string, readOnly bool, refusals *prometheus.CounterVec) error {
	err := need.Allow(id, name)
	if readOnly && need.Changes() {
		err = errReadOnlyGateway
	}
	if err != nil && refusals != nil {
		refusals.WithLabelValues(need.Label()).Inc()
	}
	return err
}

// RequestLimit returns the limit of one request of the sender that is held in memory: its quota of a message, or
// MaxRequest.
func (e *Env) RequestLimit(ctx context.Context) int64 {
	return rights.Sender(ctx).MessageLimit(e.MaxRequest)
}

// AllowControl returns nil if the sender may change what the gateway does for all clients: load and unload functions,
// and register shared memory.
func (e *Env) AllowControl(ctx context.Context) error {
	if e.ReadOnly {
		return e.refusedBy("control", errReadOnlyGateway)
	}
	if err := e.refusedBy("control", rights.Sender(ctx).AllowControl()); err != nil {
		return err
	}
	return e.recordRequest(ctx, "control")
}

// AllowChange returns nil if the sender and the gateway are not read-only.
func (e *Env) AllowChange(ctx context.Context) error {
	if e.ReadOnly {
		return e.refusedBy("change", errReadOnlyGateway)
	}
	if err := e.refusedBy("change", rights.Sender(ctx).AllowChange()); err != nil {
		return err
	}
	return e.recordRequest(ctx, "change")
}

var errReadOnlyGateway = fmt.Errorf("%w: the gateway runs with --read-only", rights.ErrReadOnly)

func (e *Env) refusedBy(right string, err error) error {
	if err != nil && e.refusals != nil {
		e.refusals.WithLabelValues(right).Inc()
	}
	return err
}

func newRefusals(registry prometheus.Registerer) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sharedtensor_gateway_refusals_total", Help: "Requests refused because the client lacks a right, by right.",
	}, []string{"right"})
	registry.MustRegister(c)
	return c
}

// Changes in the audit log.
const (
	ChangePublish    = "publish"
	ChangeWithdraw   = "withdraw"
	ChangeInvalidate = "invalidate"
	ChangeCancel     = "cancel"
	ChangeLoad       = "load"
	ChangeUnload     = "unload"
	ChangeRegister   = "register shared memory"
	ChangeUnregister = "unregister shared memory"
)

// Audited writes one line about a change that the sender of a request has made, with the name of its token or
// certificate. attrs are pairs for slog.
func (e *Env) Audited(ctx context.Context, change string, attrs ...any) {
	if e.audit != nil {
		audit(ctx, e.audit, rights.Sender(ctx), change, attrs...)
	}
}

func audit(ctx context.Context, log *slog.Logger, id Identity, change string, attrs ...any) {
	_ = record(ctx, log, id, change, attrs) // reported and counted by the log's writer
}

// record writes one line and returns the error of the log's writer.
func record(ctx context.Context, log *slog.Logger, id Identity, change string, attrs []any) error {
	attrs = append([]any{"change", change, "identity", id.Name, "method", id.Method}, attrs...)
	if id.ID != "" {
		attrs = append(attrs, "token_id", id.ID)
	}
	if peer := admission.PeerFrom(ctx); peer != nil {
		attrs = append(attrs, "remote", peer.String())
	}
	if trace := traceID(ctx); trace != "" {
		attrs = append(attrs, "trace_id", trace)
	}
	if !log.Enabled(ctx, slog.LevelInfo) {
		return nil
	}
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "audit", 0)
	r.Add(attrs...)
	return log.Handler().Handle(ctx, r)
}

// openLogs opens the audit log and the access log. Without files, their lines go to the gateway's log.
func (g *Gateway) openLogs(context.Context) (func() error, error) {
	g.audit, g.access = g.log, g.log
	closeAll := func() error {
		var errs []error
		for _, f := range g.files {
			errs = append(errs, f.Close())
		}
		return errors.Join(errs...)
	}
	open := func(flag, path string) (*slog.Logger, error) {
		f, err := logs.OpenFile(path)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		g.files = append(g.files, f)
		handler := slog.NewJSONHandler(countingWriter{f, g.lostRecords.WithLabelValues(flag), g.log, flag, new(atomic.Int64)}, nil)
		return slog.New(handler), nil
	}
	var err error
	if g.config.Audit != "" {
		if g.audit, err = open("audit", g.config.Audit); err != nil {
			return closeAll, err
		}
	}
	switch g.config.AccessLog {
	case "":
	case Off:
		g.access = slog.New(slog.DiscardHandler)
	default:
		if g.access, err = open("access-log", g.config.AccessLog); err != nil {
			return closeAll, err
		}
	}
	return closeAll, nil
}

// Reopen opens the files of the audit log and the access log again, after a rotation. A file that cannot be opened is
// reported, and the previous one stays in use. Files of tokens, certificates and policies are read again without it.
func (g *Gateway) Reopen() {
	for _, f := range g.files {
		if err := f.Reopen(); err != nil {
			g.log.Error("a log file was not opened again; it continues in the previous file", "error", err)
		}
	}
}

// countingWriter counts and reports records that cannot be written.
type countingWriter struct {
	to       io.Writer
	lost     prometheus.Counter
	log      *slog.Logger
	flag     string
	reported *atomic.Int64 // time of the last report, in nanoseconds
}

func (w countingWriter) Write(record []byte) (int, error) {
	n, err := w.to.Write(record)
	if err == nil {
		return n, nil
	}
	w.lost.Inc()
	now, last := time.Now().UnixNano(), w.reported.Load()
	if (last == 0 || now-last >= int64(time.Minute)) && w.reported.CompareAndSwap(last, now) {
		w.log.Error("records are missing in a log file", "flag", "--"+w.flag, "error", err)
	}
	return n, err
}

// newLostRecords returns the counter of records that could not be written.
func newLostRecords() *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sharedtensor_gateway_log_records_lost_total", Help: "Records that could not be written, by log: audit or access-log.",
	}, []string{"log"})
	for _, log := range []string{"audit", "access-log"} {
		c.WithLabelValues(log)
	}
	return c
}

// newLostLines returns the counter of lines of the gateway's log that were dropped.
func newLostLines(lost func() uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "sharedtensor_gateway_log_lines_lost_total", Help: "Lines of the gateway's log that were dropped, because it was not read.",
	}, func() float64 { return float64(lost()) })
}
