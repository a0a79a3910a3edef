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
