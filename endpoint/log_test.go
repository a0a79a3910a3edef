package endpoint_test

import "log/slog"

// discard is a logger for tests that provoke warnings.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
