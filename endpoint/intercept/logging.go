// Package intercept provides interceptors for calls, tasks and streams, at a server or a client: logging, W3C Trace
// Context, and access control.
//
//	server, err := endpoint.NewServer(endpoint.ServerOptions{
//		Devices: devices, Registry: functions,
//		Interceptors: []endpoint.Interceptor{
//			intercept.Tracing(nil),
//			intercept.Logging(slog.Default()),
//			intercept.Only(intercept.Callers{UIDs: []uint32{1000}}, "train"),
//		},
//	})
//
// Their order matters: Logging after Tracing logs the trace, and refusals of Only after Logging are logged.
package intercept

import (
	"context"
	"log/slog"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Logging logs each call, task and stream when it ends, at level Info, or Warn if it failed. A line has the function,
// kind, peer, duration, and the trace if [Tracing] precedes it. Arguments and results are not logged.
func Logging(log *slog.Logger) endpoint.Interceptor {
	return func(next endpoint.Invoke) endpoint.Invoke {
		return func(ctx context.Context, call *endpoint.Invocation) error {
			start := time.Now()
			err := next(ctx, call)
			level := slog.LevelInfo
			if err != nil {
				level = slog.LevelWarn
			}
			if log.Enabled(ctx, level) {
				log.LogAttrs(ctx, level, call.Kind.String(), attributes(ctx, call, time.Since(start), err)...)
			}
			return err
		}
	}
}

func attributes(ctx context.Context, call *endpoint.Invocation, took time.Duration, err error) []slog.Attr {
	list := make([]slog.Attr, 0, 10)
	list = append(list, slog.String("endpoint", call.Endpoint), slog.Duration("duration", took))
	if call.Client {
		list = append(list, slog.String("server", call.Peer.Server))
	} else {
		list = append(list, slog.Uint64("session", call.Peer.Session))
	}
	list = append(list, slog.Int64("pid", int64(call.Peer.PID)), slog.Uint64("uid", uint64(call.Peer.UID)))
	if call.Peer.Label != "" {
		list = append(list, slog.String("label", call.Peer.Label))
	}
	if call.Task != "" {
		list = append(list, slog.String("task", call.Task))
	}
	if t, ok := TraceFrom(ctx); ok {
		list = append(list, slog.String("trace_id", t.TraceID), slog.String("span_id", t.SpanID))
	}
	if err != nil {
		list = append(list, slog.Any("error", err))
	}
	return list
}
