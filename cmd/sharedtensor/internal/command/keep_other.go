//go:build !linux

package command

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

func newKeepCommand() *cobra.Command {
	return &cobra.Command{Use: "keep", Hidden: true, RunE: func(*cobra.Command, []string) error { return errors.ErrUnsupported }}
}

const (
	keepProcess = "process"
	keepSystemd = "systemd"
)

type closableStore interface {
	endpoint.Store
	Close() error
}

var errKeep = fmt.Errorf("--keep: %w: it needs Linux", errors.ErrUnsupported)

func openSystemd() (closableStore, error) { return nil, errKeep }

func openKeeper(string, *slog.Logger) (closableStore, error) { return nil, errKeep }

func (modelArg) sourceID() string { return "" }
