//go:build !linux

package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

func newKeepCommand() *cobra.Command {
	return &cobra.Command{Use: "keep", Hidden: true, RunE: func(*cobra.Command, []string) error { return errors.ErrUnsupported }}
}

const (
	keepProcess = "process"
	keepConnect = "connect"
	keepSystemd = "systemd"
	keepDir     = "dir:"
)

type closableStore interface {
	endpoint.Store
	Close() error
}

var errKeep = fmt.Errorf("--keep: %w: it needs Linux", errors.ErrUnsupported)

func openSystemd() (closableStore, error) { return nil, errKeep }

func openDirectory(string) (closableStore, error) { return nil, errKeep }

func openKeeper(string, bool, *slog.Logger) (closableStore, error) { return nil, errKeep }

// shm returns false: there is no /dev/shm to check.
func shm() (finding, bool) { return finding{}, false }

func notifyUpgrade(chan<- os.Signal) {}

func signalOwner(string, int) error {
	return fmt.Errorf("upgrade: %w: it needs Linux", errors.ErrUnsupported)
}

func examineDeployment(*cli.OwnerFlags) []finding { return nil }

// first is never used, because there are no upgrades.
type first struct {
	log   *slog.Logger
	pid   int
	ended chan *os.ProcessState
}

func newFirst(string, *slog.Logger) (*first, error) { return nil, nil }

func (f *first) follow(context.Context) error { return nil }
