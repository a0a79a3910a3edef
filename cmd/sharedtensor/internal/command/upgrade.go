package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

const upgradeHelp = `Replace the owner's process by a new one of the same program file and arguments, for example after a new build was
installed. The owner starts the new process beside itself, and hands the listening socket and the models' memory to it.
Nothing is loaded or copied, every connection attempt succeeds, and no call is lost. The old process ends when its calls
have ended, after its --grace at most. Cached results, references to managed objects and tasks end with it.

If the new process fails its checks, the old one continues to serve, and the command reports why. The new process has the
old one's arguments, environment and standard streams, and its process id is another one.

In a container the first process does not end, because the kernel would end the others with it: it frees its memory, passes
signals to the process that serves, and ends with its exit status. Run the command in the owner's container or on the host.`

func newUpgradeCommand() *cobra.Command {
	var o *cli.OwnerFlags
	var within time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use:   "upgrade [flags]",
		Short: "Replace the owner's process without failed calls",
		Long:  upgradeHelp,
		Example: `  sharedtensor upgrade
  sharedtensor upgrade --socket /run/models/owner.sock --within 2m`,
		Args: cli.Exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			if within <= 0 {
				return cli.Usagef(c, "--within %v: it must be positive", within)
			}
			return o.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				got, err := upgradeOwner(ctx, client, within)
				if err != nil {
					return err
				}
				if asJSON {
					return term.PrintJSONLine(c.OutOrStdout(), got)
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "process %d replaced process %d after %s; version %s\n",
					got.PID, got.ReplacedPID, term.FormatDuration(got.Took), term.Printable(got.Version))
				return err
			})
		},
	}
	o = cli.AddOwnerFlags(c)
	c.Flags().DurationVar(&within, "within", upgradeTime, "time limit for the new process to serve")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON; durations are in nanoseconds")
	return c
}

// upgradeTime limits the time until a new process serves.
const upgradeTime = time.Minute

// upgraded describes a completed upgrade.
type upgraded struct {
	PID         int32         `json:"pid"`
	ReplacedPID int32         `json:"replaced_pid"`
	Server      string        `json:"server"`
	Version     string        `json:"version"`
	Took        time.Duration `json:"took"`
}

// upgradeOwner signals the owner and waits until another process serves.
func upgradeOwner(ctx context.Context, client *endpoint.Client, within time.Duration) (upgraded, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no new process serves after %v: the log of the owner has the reason, if it supports upgrades", within))
	defer cancel()
	before, err := client.ServerInfo(ctx)
	if err != nil {
		return upgraded{}, err
	}
	start, failed := time.Now(), failureFile(client.Socket())
	_ = os.Remove(failed) // of an earlier upgrade, if any
	if err := signalOwner(client.Socket(), int(before.PID)); err != nil {
		return upgraded{}, err
	}
	for {
		if text, err := os.ReadFile(failed); err == nil {
			return upgraded{}, fmt.Errorf("process %d continues to serve: %s", before.PID, cli.OneLine(strings.TrimSpace(string(text))))
		}
		now, err := client.ServerInfo(ctx)
		switch {
		case err == nil && now.ID != before.ID:
			return upgraded{PID: now.PID, ReplacedPID: before.PID, Server: now.ID, Version: now.Version, Took: time.Since(start)}, nil
		case err != nil && !errors.Is(err, endpoint.ErrUnavailable):
			return upgraded{}, err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return upgraded{}, context.Cause(ctx)
		}
	}
}

// failureFile is the file beside a socket in which an owner writes why its last upgrade failed.
func failureFile(socket string) string { return socket + ".upgrade" }

// upgrader replaces the process of a service. It is used by one goroutine.
type upgrader struct {
	service *service
	loads   *loader
	running bool
	served  atomic.Bool // the successor serves
	ended   chan error
	first   *first // nil unless this process stays as the parent of its successors
}

// start begins an upgrade unless one is running.
func (u *upgrader) start(ctx context.Context) {
	if u.running {
		return
	}
	var err error
	if u.first == nil {
		if u.first, err = newFirst(u.service.server.Socket(), u.service.log); err != nil {
			u.service.log.Error("the upgrade failed", "error", err)
			return
		}
	}
	u.running = true
	_ = os.Remove(failureFile(u.service.server.Socket())) // of an earlier upgrade, if any
	u.service.log.Info("starting a new process that replaces this one")
	go func() {
		ctx, cancel := context.WithTimeoutCause(ctx, upgradeTime, fmt.Errorf("it did not serve after %v", upgradeTime))
		defer cancel()
		opts := endpoint.HandoverOptions{Drain: u.service.grace, Serving: func(pid int) {
			u.served.Store(true)
			u.loads.cancel() // the new process loads
			u.service.tell(fmt.Sprintf("MAINPID=%d", pid), fmt.Sprintf("STATUS=process %d serves", pid))
			u.service.log.Info("the new process serves", "pid", pid)
			if u.first != nil {
				u.first.pid = pid
			}
		}}
		if u.first != nil {
			opts.Ended = func(state *os.ProcessState) { u.first.ended <- state }
		}
		u.ended <- u.service.server.Handover(ctx, opts)
	}()
}

// wait returns when a running upgrade has ended, for a server that has stopped.
func (u *upgrader) wait() error {
	if err := <-u.ended; !u.end(err) {
		return err
	}
	return nil
}

// end handles the end of an upgrade. It reports whether this process must end.
func (u *upgrader) end(err error) bool {
	u.running = false
	log := u.service.log
	if u.served.Load() {
		if err != nil {
			log.Warn("calls were still running when this process was replaced", "error", err)
		}
		u.loads.stop()
		u.service.first = u.first
		log.Info("replaced")
		return true
	}
	log.Error("the upgrade failed", "error", err)
	file := failureFile(u.service.server.Socket())
	if err := os.WriteFile(file, []byte(cli.OneLine(err.Error())+"\n"), 0o600); err != nil {
		log.Warn("the command upgrade does not receive the reason", "error", err)
	}
	return false
}
