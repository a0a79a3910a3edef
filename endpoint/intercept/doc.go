// Package intercept has interceptors that are ready to stand in front of calls, tasks and streams, at a server or at a
// client: logging, traces of W3C Trace Context, and who may call what.
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
// Their order matters: what stands behind Tracing logs the trace, and what stands behind Logging is logged when it
// refuses a call.
package intercept
