package gateway

import (
	"fmt"
	"io"
	"log/slog"
)

// NewLogger returns the logger that LogLevel and LogFormat of the configuration ask for.
func (c *Config) NewLogger(w io.Writer) (*slog.Logger, error) {
	return newLogger(w, c.LogLevel, c.LogFormat)
}

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var at slog.Level
	if err := at.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %q is none of debug, info, warn, error", level)
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
