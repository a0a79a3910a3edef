package command

import (
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
)

const keepHelp = `Hold the memory of an owner's models while no owner runs. serve --keep starts this process when it is needed, so it rarely
has to be run by hand. It holds descriptors and reads nothing of them.

The keeper ends when it has held nothing for --idle and no owner is connected. SIGTERM ends it at once, which frees the
memory that no process maps. If it is killed while an owner runs,
the owner starts another one. If both are killed, the memory is lost and models are loaded again.

A keeper of an owner in another container, or of a service manager, runs with --idle 0. The owner then has --keep=connect and
never starts one. If the socket file is removed, the keeper creates it again. If that is impossible and no owner is connected,
it ends after ten minutes.`

func newKeepCommand() *cobra.Command {
	var socket string
	var log bool
	var idle time.Duration
	c := &cobra.Command{
		Use:     "keep --socket PATH",
		Short:   "Hold the memory of an owner's models while the owner restarts",
		Long:    keepHelp,
		Example: `  sharedtensor keep --socket /run/models/owner.sock.keep`,
		Args:    cli.Exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			if socket == "" {
				return cli.Usagef(c, "--socket is required: the socket of an owner with .keep behind it")
			}
			out := unattended(c)
			defer out.close()
			config := keeper.Config{Socket: socket, Idle: idle}
			if idle <= 0 {
				config.Idle = -1
			}
			if log {
				config.Logger = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			}
			return keeper.Serve(c.Context(), config)
		},
	}
	c.Flags().StringVar(&socket, "socket", "", "path of the keeper's socket")
	c.Flags().DurationVar(&idle, "idle", 10*time.Second, "time without models and owners after which the keeper ends; 0 for never")
	c.Flags().BoolVar(&log, "log", false, "report refused connections and requests on standard error")
	return c
}

// Values of serve --keep.
const (
	keepProcess = "process"
	keepConnect = "connect"
	keepSystemd = "systemd"
	keepDir     = "dir:" // and the path of a directory
)

// closableStore is a store that this process disconnects from when it ends.
type closableStore interface {
	endpoint.Store
	Close() error
}

// openSystemd takes the descriptors that the service manager has kept. Call it before the socket is taken.
func openSystemd() (closableStore, error) { return keeper.NewSystemd() }

// openDirectory opens a directory for copies of the models.
func openDirectory(path string) (closableStore, error) { return keeper.OpenDirectory(path) }

// openKeeper connects to the keeper of an owner's socket. It starts one if there is none, unless connectOnly is set.
func openKeeper(socket string, connectOnly bool, log *slog.Logger) (closableStore, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	path := socket + ".keep"
	return keeper.Connect(keeper.Options{Socket: path, Command: []string{program, "keep", "--socket", path}, ConnectOnly: connectOnly, Logger: log})
}
