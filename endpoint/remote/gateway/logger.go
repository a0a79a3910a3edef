package gateway

import (
	"fmt"
	"io"
	"log/slog"
)

// NewLogger returns a logger with the configured LogLevel and LogFormat.
func (c *Config) NewLogger(w io.Writer) (*slog.Logger, error) {
	return newLogger(w, c.LogLevel, c.LogFormat)
}

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var at slog.Level
	if err := at.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %q is not one of debug, info, warn, error", level)
	}
	opts := &slog.HandlerOptions{Level: at}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("--log-format: %q is neither text nor json", format)
}
